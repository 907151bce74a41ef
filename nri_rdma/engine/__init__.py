"""The engine: decides for each sandbox and container, whichever door the request came through."""
