"""Where the rows of a table lie: in memory, or memory-mapped on disk through Hugging Face `datasets`.

`datasets` takes a second to import, so only what needs it does, and then without progress bars.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .errors import DataError
from .kinds import NESTED, Kind, Row

_FINGERPRINT_ROWS = 1000


class Rows(Protocol):
    """Rows of a table, by number."""

    def __len__(self) -> int: ...
    def take(self, indices: Sequence[int]) -> dict[str, list[Any]]: ...


class MemoryRows:
    """Rows as Python values; a list or object is kept as JSON text, so that every taker gets a copy of its own."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {}
        self._kinds: Mapping[str, Kind] = {}

    def append(self, row: Row) -> None:
        for name, value in row.items():
            self._columns.setdefault(name, []).append(_stored(value))

    def finished(self, kinds: Mapping[str, Kind]) -> "MemoryRows":
        """These rows, once all are there and their kinds are known."""
        self._kinds = kinds
        return self

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))

    def take(self, indices: Sequence[int]) -> dict[str, list[Any]]:
        return {name: self._column(name, kind, indices) for name, kind in self._kinds.items()}

    def _column(self, name: str, kind: Kind, indices: Sequence[int]) -> list[Any]:
        stored = self._columns[name]
        return [_restored(stored[i], kind) for i in indices]


def _stored(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _restored(value: Any, kind: Kind) -> Any:
    if value is None:
        return None
    if kind in NESTED:
        return json.loads(value)
    return float(value) if kind == "float" else value


class DatasetRows:
    """Rows of a `datasets.Dataset`; columns in `kinds` hold what `_stored` made of their values."""

    def __init__(self, dataset: Any, kinds: Mapping[str, Kind] | None = None) -> None:
        self._dataset = dataset
        self._kinds = kinds or {}
        self.columns: tuple[str, ...] = tuple(dataset.column_names)

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, indices: Sequence[int]) -> dict[str, list[Any]]:
        taken = self._dataset[list(indices)]
        return {name: [self._value(name, v) for v in taken[name]] for name in self.columns}

    def _value(self, name: str, value: Any) -> Any:
        kind = self._kinds.get(name)
        return _unzipped(value) if kind is None else _restored(value, kind)

    def fingerprint(self) -> str:
        """A digest of the shape and of rows spread over the dataset.

        The library's own one depends on the machine's cache and on the library's version.
        """
        count = min(len(self), _FINGERPRINT_ROWS)
        sample = self.take([i * len(self) // count for i in range(count)])
        text = json.dumps([self.columns, len(self), sample], default=repr, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _unzipped(value: Any) -> Any:
    """Chat messages of an older dataset, a dict of the lists `role` and `content`, as a list of dicts."""
    match value:
        case {"role": [*_], "content": [*_]}:
            return [dict(zip(value, parts, strict=True)) for parts in zip(*value.values(), strict=True)]
    return value


def store_on_disk(
    read: Callable[[Path, str], Iterator[tuple[int, Row]]], file: Path, kinds: Mapping[str, Kind], fingerprint: str
) -> DatasetRows:
    """The rows of a large (and already checked) file in the cache of `datasets`, written once per content."""
    datasets = _datasets()

    def rows() -> Iterator[Row]:
        for _, row in read(file, str(file)):
            yield {name: _stored(value) for name, value in row.items()}

    types = {"bool": "bool", "int": "int64", "float": "float64"}
    features = datasets.Features({name: datasets.Value(types.get(kind, "string")) for name, kind in kinds.items()})
    dataset = datasets.Dataset.from_generator(rows, features=features, fingerprint=fingerprint[:32])
    return DatasetRows(dataset, kinds)


def load_parquet(path: str, file: Path) -> DatasetRows:
    """The rows of a Parquet file.

    Raises:
        DataError: the file is no Parquet file, is damaged or has no rows.
    """
    datasets = _datasets()
    try:
        dataset = datasets.Dataset.from_parquet(str(file))
    except Exception as error:
        raise DataError(path, f"it can't be read as Parquet: {_reason(error)}", "Write the file again.") from error
    return _not_empty(path, DatasetRows(dataset))


def load_hub(path: str, folder: Path | None, split: str, name: str | None) -> DatasetRows:
    """One split of a dataset of the Hugging Face hub, of its local cache, or of a folder in the hub's form.

    Raises:
        DataError: it can't be found or loaded, or has no rows.
    """
    datasets = _datasets()
    try:
        dataset = datasets.load_dataset(str(folder or path), name, split=split)
    except Exception as error:
        shown = ", ".join([f"split={split!r}", *([f"name={name!r}"] if name else [])])
        cause = f"no such data file, and as a dataset ({shown}) it can't be loaded: {_reason(error)}"
        raise DataError(path, cause, "Check the path or id, the split, and the network if it isn't cached.") from error
    return _not_empty(path, DatasetRows(dataset))


def _not_empty(path: str, rows: DatasetRows) -> DatasetRows:
    if len(rows) == 0:
        raise DataError(path, "it has no rows", "Give it at least one row.")
    return rows


def _reason(error: Exception) -> str:
    """The first line of the innermost cause: the libraries wrap it in 'An error occurred'."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _datasets() -> Any:
    import datasets
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    datasets.disable_progress_bars()
    disable_progress_bars()
    # What they log as an error they also raise, and it reaches the user in our words.
    datasets.utils.logging.set_verbosity(logging.CRITICAL)
    hub_logging.set_verbosity(logging.CRITICAL)
    return datasets
