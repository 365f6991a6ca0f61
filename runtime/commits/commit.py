"""One commit on disk: what it says about itself, whether it is whole, and what it gives back."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunError
from .disk import truncate

if TYPE_CHECKING:
    from torch import Tensor

META_FILE = "meta.json"
TENSOR_FOLDER = "tensors"
FORMAT = 1


class CommitError(RunError):
    """A commit can't be written, read or used."""


@dataclass(frozen=True)
class Commit:
    """A whole commit.

    Attributes:
        path: its directory, `OUT/commits/step-000012`.
        step: the number of finished steps it holds.
        meta: what the run wrote into it beside tensors (data position, schedules, states, thread count).
        logs: the length in bytes that each log had, by its path relative to OUT.
    """

    path: Path
    step: int
    meta: dict[str, Any]
    logs: Mapping[str, int] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        """The run's output directory."""
        return self.path.parent.parent

    def tensor_names(self) -> list[str]:
        """The names of its tensors.

        Raises:
            CommitError: the index is damaged.
        """
        from .tensors import tensor_names

        with self._reading():
            return tensor_names(self.path / TENSOR_FOLDER)

    def load_tensors(self, into: Mapping[str, "Tensor"] | None = None, prefix: str = "") -> dict[str, "Tensor"]:
        """The tensors by name: on the CPU all whose names begin with `prefix`, or those of `into`, filled in place.

        Of a DTensor only what belongs into its own shard is read, whatever layout the tensor was written from.

        Raises:
            CommitError: one of `into` isn't there or has another shape or dtype, or the files are damaged.
        """
        from .tensors import load_tensors

        with self._reading():
            return load_tensors(self.path / TENSOR_FOLDER, into, prefix)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (KeyError, ValueError) as error:
            raise CommitError(f"{self.path}: {error.args[0]}.") from error
        except Exception as error:
            raise CommitError(f"{self.path}: the tensors can't be read ({type(error).__name__}: {error}).") from error


def pack_commit(commit: Commit) -> bytes:
    """A commit as bytes for another rank."""
    return json.dumps([str(commit.path), commit.step, commit.meta, dict(commit.logs)]).encode()


def unpack_commit(data: bytes) -> Commit:
    """What `pack_commit` packed."""
    path, step, meta, logs = json.loads(data)
    return Commit(Path(path), step, meta, logs)


def read_commit(folder: Path) -> Commit:
    """The commit in a directory.

    Raises:
        CommitError: it isn't whole; the text says what is wrong.
    """
    content = _read_meta(folder)
    for name, size in content["files"].items():
        _check_size(folder / name, size)
    return Commit(folder, content["step"], content["meta"], content["logs"])


def _read_meta(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / META_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommitError(f"{META_FILE} can't be read ({error})") from error
    if not isinstance(content, dict) or not {"step", "meta", "logs", "files"} <= content.keys():
        raise CommitError(f"{META_FILE} lacks what every commit says")
    if content.get("format") != FORMAT:
        raise CommitError(f"it has format {content.get('format')}, this version reads {FORMAT}")
    return content


def _check_size(file: Path, size: int) -> None:
    try:
        found = file.stat().st_size
    except OSError:
        raise CommitError(f"{file.name} is missing") from None
    if found != size:
        raise CommitError(f"{file.name} has {found} bytes instead of {size}")


def restore_logs(commit: Commit) -> None:
    """Cut the run's logs to what they were when the commit was made.

    Raises:
        CommitError: a log is gone or shorter than it was then.
    """
    for name, size in commit.logs.items():
        file = commit.out / name
        found = file.stat().st_size if file.is_file() else 0
        if found < size:
            raise CommitError(
                f"{file} has {found} bytes, but had {size} at step {commit.step}: it was cut or replaced since. "
                f"Put it back, or start the run anew in another directory."
            )
        if found > size:
            truncate(file, size)
