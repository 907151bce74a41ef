"""Reads as bytes what a link loses when it moves to another namespace, and builds the requests that restore it."""
