"""Generated from ../cri.proto by tests/rig/generate.py, never edited."""
