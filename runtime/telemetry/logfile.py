"""A file of JSON objects, one per line, that grows with a run."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class LogFile:
    """An append-only JSON Lines file whose length belongs to each commit.

    Args:
        path: the file.
        resume: append to what is there (cut it to a commit's length before); else start empty.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self._stream = path.open("a" if resume else "w", encoding="utf-8", newline="\n")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one object. Floats are written exactly; what isn't finite becomes null, as JSON has no such numbers."""
        text = json.dumps(_plain(record), ensure_ascii=False, allow_nan=False, default=str)
        self._stream.write(text + "\n")
        self._stream.flush()  # so that others can follow the file; `sync` is what survives a crash

    def sync(self) -> int:
        """Bring what was written to the disk; the file's length in bytes."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return os.fstat(self._stream.fileno()).st_size

    def close(self) -> None:
        """Close the file; twice is as good as once."""
        self._stream.close()


def _plain(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair can't be written
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value
