"""The commits of a run. A commit is a checkpoint: there after a rename, or not at all.

`save` writes everything into `step-N.tmp`, brings it to the disk, and renames it to `step-N`. Whatever the moment of
a crash, the directory has the old newest commit or the new one, and perhaps leftovers that `clean` removes.
"""

import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import RunWarning
from .commit import FORMAT, META_FILE, TENSOR_FOLDER, Commit, CommitError, read_commit
from .disk import make_folder, rename, sync_path, sync_tree

if TYPE_CHECKING:
    from torch import Tensor

# A commit that is being replaced by one of the same step keeps counting, under this name, until the new one is there.
_NAME = re.compile(r"step-(\d{6,})(\.replaced)?")
_LEFTOVER = ".tmp"


class Log(Protocol):
    """A file that grows with the run, and whose length belongs to each commit."""

    @property
    def path(self) -> Path: ...

    def sync(self) -> int:
        """Bring what was written to the disk; the file's length in bytes."""
        ...


class CommitStore:
    """The commits below `out/commits`.

    Args:
        out: the run's output directory.
        keep: how many commits to keep, at least 1; with 2, a damaged one leaves one to fall back to.
    """

    def __init__(self, out: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least one commit has to be kept")
        self.out = out
        self.folder = out / "commits"
        self.keep = keep

    def save(
        self, step: int, tensors: Mapping[str, "Tensor"], meta: Mapping[str, Any], logs: Sequence[Log] = ()
    ) -> Commit:
        """Commit the state after `step` finished steps; older commits beyond `keep` are removed.

        Args:
            step: the number of finished steps.
            tensors: flat names to tensors; on return their memory is free to change.
            meta: JSON-able values.
            logs: files below `out`, brought to the disk before their lengths are noted.

        Raises:
            CommitError: it can't be written; earlier commits are as they were.
        """
        target = self.folder / f"step-{step:06d}"
        try:
            partial = self._write(target, step, tensors, meta, logs)
            self._publish(partial, target)
        except OSError as error:
            raise CommitError(f"The commit of step {step} can't be written: {error}. {self._standing()}") from error
        self._prune(step)
        return read_commit(target)

    def _write(
        self, target: Path, step: int, tensors: Mapping[str, "Tensor"], meta: Mapping[str, Any], logs: Sequence[Log]
    ) -> Path:
        from .tensors import save_tensors

        partial = target.with_name(target.name + _LEFTOVER)
        make_folder(self.folder)
        _remove(partial)
        partial.mkdir()
        save_tensors(partial / TENSOR_FOLDER, tensors)
        content = {
            "format": FORMAT,
            "step": step,
            "files": _sizes(partial),
            "logs": {log.path.relative_to(self.out).as_posix(): log.sync() for log in logs},
            "meta": meta,
        }
        (partial / META_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")
        sync_tree(partial)
        return partial

    def _publish(self, partial: Path, target: Path) -> None:
        if target.exists():
            replaced = target.with_name(target.name + ".replaced")
            _remove(replaced)
            rename(target, replaced)
        rename(partial, target)

    def _prune(self, step: int) -> None:
        """Remove old commits, and those of later steps: the run went back and they are no longer its future."""
        folders = self._folders()
        ours = [f for f in folders if _step(f) <= step and not f.name.endswith(".replaced")][: self.keep]
        try:
            for folder in folders:
                if folder not in ours:
                    self._retire(folder)
        except OSError as error:
            warnings.warn(f"Old commits of {self.folder} can't be removed: {error}.", RunWarning, stacklevel=3)

    def _retire(self, folder: Path) -> None:
        """Remove a commit so that a crash halfway leaves a leftover and not a commit with holes."""
        if folder.exists():
            leftover = folder.with_name(folder.name + _LEFTOVER)
            _remove(leftover)
            rename(folder, leftover)
            _remove(leftover)

    def latest(self) -> Commit | None:
        """The newest whole commit; None if there never was one.

        Warns:
            RunWarning: newer ones are damaged.

        Raises:
            CommitError: there are commits, and all of them are damaged.
        """
        problems: list[str] = []
        for commit in self._whole(problems):
            if problems:
                text = f"Going back to the commit of step {commit.step}: {'; '.join(problems)}."
                warnings.warn(text, RunWarning, stacklevel=2)
            return commit
        if problems:
            raise CommitError(f"No commit of {self.folder} is whole: {'; '.join(problems)}.")
        return None

    def _whole(self, problems: list[str]) -> Iterator[Commit]:
        for folder in self._folders():
            try:
                yield read_commit(folder)
            except CommitError as error:
                problems.append(f"{folder.name} is damaged ({error})")

    def clean(self) -> None:
        """Remove what interrupted saves left behind."""
        for leftover in sorted(self.folder.glob(f"*{_LEFTOVER}")):
            _remove(leftover)

    def clear(self) -> None:
        """Remove all commits, for a run that starts anew in the same directory."""
        for folder in reversed(self._folders()):
            self._retire(folder)
        self.clean()

    def _folders(self) -> list[Path]:
        """Directories of commits, newest first, a replaced one after its successor."""
        entries = list(self.folder.iterdir()) if self.folder.is_dir() else []
        folders = sorted(path for path in entries if _NAME.fullmatch(path.name))
        return sorted(folders, key=lambda path: -_step(path))

    def _standing(self) -> str:
        whole = next(self._whole([]), None)
        return f"The last one, of step {whole.step}, is untouched." if whole else "There is no earlier one."


def _step(folder: Path) -> int:
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else -1


def _sizes(folder: Path) -> dict[str, int]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
        sync_path(folder.parent)
