"""What a link loses when it moves to another namespace, as bytes, and the requests that bring it back."""
