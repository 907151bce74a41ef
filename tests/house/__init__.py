"""The rules of the house, run as tests."""
