"""What the product costs beside a floor, measured in one run."""
