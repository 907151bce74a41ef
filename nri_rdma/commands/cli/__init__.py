"""The command line. Commands are thin: they read, ask and show."""
