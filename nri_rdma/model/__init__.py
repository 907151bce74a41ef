"""What things are: frozen values and their parsers. No I/O, no clock, no logging."""
