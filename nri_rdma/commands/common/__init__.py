"""What several commands share: options, the terminal, the node that they look at, configurations that they read."""
