"""The package as others get it: built, installed, and used from outside."""
