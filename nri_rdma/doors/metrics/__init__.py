"""The door of monitoring: a page that Prometheus scrapes, and whether the daemon is well, over HTTP."""
