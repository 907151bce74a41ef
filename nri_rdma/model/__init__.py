"""The values of the domain as frozen types, with their parsers. No I/O, no clock, no logging."""
