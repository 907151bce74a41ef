"""The command line: the program's entry point, the errors that it prints, its version, and shell completion."""
