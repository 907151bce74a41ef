"""Worker threads, the listening thread, and waiting for them."""
