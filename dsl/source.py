"""Where a piece of a flow was written: the span every AST node, graph node and diagnostic carries."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A range of one file. Lines and columns count from 1; the end column is exclusive."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int

    def to(self, other: "Span") -> "Span":
        """The range from the start of this span to the end of `other`."""
        return Span(self.path, self.line, self.column, other.end_line, other.end_column)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


NOWHERE = Span("<built in>", 0, 0, 0, 0)
"""The span of what no file holds (defaults, nodes that a pass made)."""
