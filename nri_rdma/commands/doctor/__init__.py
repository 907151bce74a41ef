"""What is right and wrong with a machine, before and while a daemon runs on it."""
