"""What every error and warning of a run has in common."""


class RunError(Exception):
    """A run cannot go on, for a reason that the user can mend: its text is the whole message."""


class RunWarning(UserWarning):
    """Something a run got past by itself, but that the user should know."""
