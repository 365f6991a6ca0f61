"""The error of a data file: where it is, what was found there and what to do."""

from ..errors import RunError


class DataError(RunError):
    """A table can't be read as it is.

    Attributes:
        source: the file or dataset as the flow names it.
        line: the line of the file, counted from 1; None where no one line is to blame.
        cause: what was found.
        help: what to do about it.
    """

    def __init__(self, source: str, cause: str, help: str, line: int | None = None) -> None:
        super().__init__(source, cause, help, line)
        self.source = source
        self.cause = cause
        self.help = help
        self.line = line

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}, line {self.line}"
        return f"{where}: {self.cause}\n  {self.help}"
