"""Tables: what a `read` takes its rows from."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .errors import DataError
from .files import NumberedRows, csv_rows, json_rows, jsonl_rows
from .kinds import Columns
from .stores import MemoryRows, Rows, load_hub, load_parquet, store_on_disk

# Rows of a larger file are kept on disk (memory-mapped Arrow) instead of in Python objects, which take about five
# times the file's size. Below it, importing `datasets` would cost more than reading the file.
IN_MEMORY_BYTES = 64 * 2**20

_ROWS: Mapping[str, Callable[[Path, str], NumberedRows]] = {
    ".jsonl": jsonl_rows,
    ".json": json_rows,
    ".csv": csv_rows,
}
_FORMATS = (*_ROWS, ".parquet")
_OTHER_FORMATS = {".txt", ".tsv", ".gz", ".zst", ".zip", ".arrow", ".xlsx", ".yaml", ".yml", ".pkl", ".pt", ".md"}


@dataclass(frozen=True)
class Table:
    """Rows with named columns.

    Attributes:
        columns: the names, in the order of the file.
        fingerprint: changes when the rows do: the file's SHA-256, or for a dataset one of its shape and of rows
            spread over it.
    """

    columns: tuple[str, ...]
    fingerprint: str
    _rows: Rows = field(repr=False)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, indices: Sequence[int]) -> dict[str, list[Any]]:
        """The rows of these numbers, column by column; lists and objects are fresh copies.

        Raises:
            IndexError: a number outside `0 .. len - 1`.
        """
        for index in indices:
            if not 0 <= index < len(self):
                raise IndexError(f"row {index} of a table of {len(self)} rows")
        return self._rows.take(indices)


def open_table(path: str, base_dir: Path, *, split: str = "train", name: str | None = None) -> Table:
    """Open a data file, or a Hugging Face dataset by its id.

    Args:
        path: a .jsonl, .json, .csv or .parquet file, relative to `base_dir`; else a dataset's id or directory.
        base_dir: the folder of the flow.
        split: the split of a dataset; a file has none.
        name: the configuration of a dataset; a file has none.

    Raises:
        DataError: no such file or dataset, or a malformed row (with its line).
    """
    file = base_dir / Path(path).expanduser()
    suffix = file.suffix.lower()
    if not _names_file(path, file, suffix):
        return _dataset_table(path, file, split, name)
    _check_file(path, file, suffix)
    if split != "train" or name is not None:
        raise DataError(path, "a file has no splits or configurations", "Leave out split= and name=.")
    return _parquet_table(path, file) if suffix == ".parquet" else _text_table(path, file, _ROWS[suffix])


def _names_file(path: str, file: Path, suffix: str) -> bool:
    """Whether a path means a file rather than a dataset's id, so that a misspelt file isn't looked up on the hub."""
    if file.is_file() or suffix in _FORMATS or suffix in _OTHER_FORMATS:
        return True
    looks_like_id = path.count("/") == 1 and not file.parent.is_dir()
    return suffix[1:].isalpha() and not looks_like_id and not file.is_dir()


def _check_file(path: str, file: Path, suffix: str) -> None:
    if not file.is_file():
        near = get_close_matches(file.name, _siblings(file), n=1, cutoff=0.7)
        hint = f"Did you mean {near[0]}?" if near else "The path is relative to the flow's folder."
        raise DataError(path, f"there is no such file ({file})", hint)
    if suffix not in _FORMATS:
        raise DataError(path, f"'{suffix}' is no format of data", f"A data file is one of {', '.join(_FORMATS)}.")


def _siblings(file: Path) -> list[str]:
    return sorted(p.name for p in file.parent.iterdir()) if file.parent.is_dir() else []


def _text_table(path: str, file: Path, read: Callable[[Path, str], NumberedRows]) -> Table:
    in_memory = file.stat().st_size <= IN_MEMORY_BYTES
    columns, store = Columns(), MemoryRows()
    for line, row in read(file, path):
        problem = columns.check(row, line)
        if problem:
            raise DataError(path, *problem, line=line)
        if in_memory:
            store.append(row)
    if not columns.kinds:
        raise DataError(path, "the file has no rows", "Give it at least one row.")
    fingerprint = _digest(file)
    if in_memory:
        return Table(tuple(columns.kinds), fingerprint, store.finished(columns.kinds))
    return Table(tuple(columns.kinds), fingerprint, store_on_disk(read, file, columns.kinds, fingerprint))


def _parquet_table(path: str, file: Path) -> Table:
    rows = load_parquet(path, file)
    return Table(rows.columns, _digest(file), rows)


def _dataset_table(path: str, file: Path, split: str, name: str | None) -> Table:
    rows = load_hub(path, file if file.is_dir() else None, split, name)
    return Table(rows.columns, rows.fingerprint(), rows)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
