"""Values that must be numbers: a column that holds something else, or a null, is refused by its row."""

import torch
from torch import Tensor

from .boundary import short
from .errors import RunError
from .values import Value

_LARGEST = 2**63


class NotNumbersError(RunError):
    """A value is used as numbers and holds something else.

    value: which one. row: the first row that is no number.
    """

    def __init__(self, value: Value, row: int, name: str = "a value that is used as numbers") -> None:
        assert isinstance(value.data, list)
        self.value, self.row = value, row
        item = value.data[row]
        where = f" at {value.frame.row_name(row)}" if value.frame else ""
        kind = "null" if item is None else f"{short(item)} ({type(item).__name__})"
        super().__init__(
            f"{name} is no number{where} but {kind}: mend that row of the data, or make it a number by a Python "
            "function"
        )

    def named(self, name: str) -> RunError:
        """The same error about a value that has a name."""
        return RunError(str(NotNumbersError(self.value, self.row, name)))


def numeric(value: Value) -> Value:
    """The value as a tensor; a function with the hint `Any` may have given numbers too. Raises NotNumbersError."""
    if isinstance(value.data, Tensor):
        return value
    row = next((n for n, x in enumerate(value.data) if not is_number(x)), None)
    if row is not None:
        raise NotNumbersError(value, row)
    tensor = torch.tensor(value.data)
    return Value(tensor if value.frame else tensor[0], value.frame)


def is_number(x: object) -> bool:
    return isinstance(x, float) or (isinstance(x, int) and -_LARGEST <= x < _LARGEST)
