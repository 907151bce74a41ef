"""Generated from api/ by api/generate.py; never edited."""
