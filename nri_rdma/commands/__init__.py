"""Commands: read, ask the daemon, show. They may import anything below."""
