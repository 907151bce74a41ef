"""Code that several commands share: options, terminal output, the node that a command reads, and files that commands
read and write."""
