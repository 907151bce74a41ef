"""The dry run: a daemon that decides for each pod, reports its decisions, and changes nothing."""
