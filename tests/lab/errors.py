"""The lab's one error: the machine could not be built or could not be run."""


class LabError(Exception):
    """Says what failed, where the details are, and what to do next. Never raised for a failing test."""
