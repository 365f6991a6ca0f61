"""What every error and warning of a run has in common."""


class RunError(Exception):
    """A run cannot go on, for a reason that the user can mend: its text is the whole message.

    origin: the rank on which it arose, where that is another one, which told this one of it.
    """

    origin: int | None = None


class RankError(OSError):
    """What the system refused to one rank, raised on all of them."""

    def __init__(self, rank: int, error: BaseException) -> None:
        super().__init__(f"rank {rank}: {error}")
        self.rank = rank


class RunWarning(UserWarning):
    """Something a run got past by itself, but that the user should know."""
