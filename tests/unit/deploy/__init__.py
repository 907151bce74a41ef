"""Tests of deploy/ that make no image."""
