"""What the compiler can learn of data files and model directories without torch, and without opening the network."""

import csv
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

ROWS_LOOKED_AT = 200
"""Rows of a data file that decide its columns' dtypes."""

DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")


@dataclass(frozen=True)
class DataFacts:
    """A data file: columns by name with their dtype, and how many rows it has (None: unknown)."""

    path: Path
    columns: Mapping[str, str]
    rows: int | None


@dataclass(frozen=True)
class ModelFacts:
    """A model directory. tokenizer: a digest, equal only for equal tokenizers; None where there is none.

    problem: why its configuration can't be read; None if it can.
    """

    path: Path
    max_positions: int | None
    tokenizer: str | None
    vocabulary: int | None
    problem: str | None = None
    heads: int | None = None
    kv_heads: int | None = None
    layers: int | None = None
    hidden: int | None = None


@dataclass(frozen=True)
class Places:
    """Folders in which relative paths are looked up, in order: beside the flow, then where the command was run."""

    folders: tuple[Path, ...]

    def find(self, path: str) -> Path | None:
        return next((f / path for f in self.folders if _exists(f / path)), None)

    def is_hub_id(self, path: str) -> bool:
        """Whether a path that isn't here may be a hub's `owner/name`: no folder `owner` is here either."""
        owner, slash, name = path.partition("/")
        plain = bool(slash and name) and "/" not in name and not path.startswith((".", "~"))
        return plain and Path(name).suffix not in DATA_SUFFIXES and self.find(owner) is None

    def siblings(self, path: str) -> list[str]:
        """What stands beside a path that isn't here, spelled like it."""
        parent = Path(path).parent
        found = {p.name for f in self.folders if (f / parent).is_dir() for p in (f / parent).iterdir()}
        return [(parent / name).as_posix() for name in sorted(found) if not name.startswith(".")]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


# ---------------------------------------------------------------- data files


def data_facts(path: str, places: Places) -> DataFacts | None:
    """Columns and rows of a data file; None if it isn't on this machine.

    Raises ValueError, naming file and line, if its beginning can't be read.
    """
    found = places.find(path)
    if found is None or found.is_dir():
        return None
    try:
        facts = _read_data(found, found.stat().st_mtime_ns)
    except UnicodeDecodeError as error:
        raise ValueError(f"{found.name} isn't UTF-8 text ({error.reason} at byte {error.start})") from None
    if facts is not None and facts.rows == 0:
        raise ValueError(f"{found.name} has no rows")
    return facts


@cache
def _read_data(path: Path, _modified: int) -> DataFacts | None:
    match path.suffix.lower():
        case ".jsonl":
            return _jsonl(path)
        case ".json":
            return _json(path)
        case ".csv":
            return _csv(path)
        case ".parquet":
            return _parquet(path)
    return None


def _json(path: Path) -> DataFacts:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name}, line {error.lineno}: not JSON ({error.msg})") from None
    rows = document.get("data") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows[:ROWS_LOOKED_AT]):
        raise ValueError(f'{path.name} is no list of objects, nor {{"data": [...]}} with one')
    return DataFacts(path, _columns(rows[:ROWS_LOOKED_AT]), len(rows))


def _jsonl(path: Path) -> DataFacts:
    with path.open(encoding="utf-8-sig") as lines:
        head = [_json_row(path, i, line) for i, line in enumerate(islice(lines, ROWS_LOOKED_AT), 1) if line.strip()]
        rest = sum(1 for line in lines if line.strip())
    return DataFacts(path, _columns(head), len(head) + rest)


def _json_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name}, line {number}: not JSON ({error.msg})") from None
    if not isinstance(row, dict):
        raise ValueError(f"{path.name}, line {number}: a row is an object with columns, not `{line.strip()[:40]}`")
    return row


def _csv(path: Path) -> DataFacts:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        csv.field_size_limit(sys.maxsize)
        records = (r for r in csv.reader(lines) if r)
        header, first = next(records, []), next(records, None)
        columns = {n: _csv_dtype(v) for n, v in zip(header, first or [""] * len(header), strict=False)}
        rest = 0
        for record in records:
            rest += 1
            for name, field in zip(header, record, strict=False):
                if columns[name] == "int" and _csv_dtype(field) == "float":
                    columns[name] = "float"
    return DataFacts(path, columns, rest + (first is not None))


PLAIN_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+([eE][-+]?\d+)?)?")


def _csv_dtype(first: str) -> str:
    """What the first record makes of a column, as the reader of a run has it: 007, 1_000 or 1e3 are text.

    Whole numbers and others make a column of numbers.
    """
    if first in ("true", "True", "false", "False"):
        return "bool"
    if PLAIN_NUMBER.fullmatch(first):
        return "float" if "." in first else "int"
    return "text"


def _parquet(path: Path) -> DataFacts:
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(path)
    head = next(file.iter_batches(batch_size=ROWS_LOOKED_AT), None)
    rows = head.to_pylist() if head is not None else []
    return DataFacts(path, _columns(rows), file.metadata.num_rows)


def _columns(rows: list[dict[str, Any]]) -> dict[str, str]:
    names = list(rows[0]) if rows else []
    return {name: _dtype([r.get(name) for r in rows]) for name in names}


def _dtype(values: list[Any]) -> str:
    kinds = {_dtype_of(v) for v in values}
    if len(kinds) == 1:
        return kinds.pop()
    return "float" if kinds == {"int", "float"} else "any"


def _dtype_of(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return "text"
        case [{"role": _, "content": _}, *_]:
            return "messages"
        case list():
            return "list"
    return "any"


# ---------------------------------------------------------------- model directories


def model_facts(path: str, places: Places) -> ModelFacts | None:
    """What a model directory, or the local cache of a hub id, says of itself; None if it isn't on this machine."""
    found = places.find(path)
    folder = found if found and (found / "config.json").is_file() else _cached(path)
    return _read_model(folder) if folder else None


@cache
def _read_model(folder: Path) -> ModelFacts:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        return ModelFacts(folder, None, None, None, problem=f"its config.json is no JSON: {error}")
    if not isinstance(config, dict):
        return ModelFacts(folder, None, None, None, problem="its config.json holds no object")
    return ModelFacts(
        folder,
        _whole(config, "max_position_embeddings", "n_positions"),
        _tokenizer(folder),
        _whole(config, "vocab_size"),
        heads=_whole(config, "num_attention_heads", "n_head"),
        kv_heads=_whole(config, "num_key_value_heads"),
        layers=_whole(config, "num_hidden_layers", "n_layer"),
        hidden=_whole(config, "hidden_size", "n_embd"),
    )


def _whole(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of these entries that is a whole number above 0."""
    return next((v for n in names if isinstance(v := config.get(n), int) and v > 0), None)


def _tokenizer(folder: Path) -> str | None:
    found = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    return hashlib.sha256(b"".join(f.read_bytes() for f in found)).hexdigest() if found else None


def _cached(hub_id: str) -> Path | None:
    """The snapshot of a hub id in the local cache, as huggingface_hub lays it out."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache_folder = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    snapshots = cache_folder / f"models--{hub_id.replace('/', '--')}" / "snapshots"
    found = sorted(snapshots.glob("*/config.json")) if _exists(snapshots) else []
    return found[-1].parent if found else None
