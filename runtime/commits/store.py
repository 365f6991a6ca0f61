"""The commits of a run. A commit is a checkpoint: there after a rename, or not at all.

`save` writes everything into `step-N.tmp`, brings it to the disk, and renames it to `step-N`. Whatever the moment of
a crash, the directory has the old newest commit or the new one, and perhaps leftovers that `clean` removes.

Of several ranks each writes the tensors that it holds, into files of its own; the first one does all the rest. All
ranks call the store's methods together, and have the same directory.
"""

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import RankError, RunError, RunWarning
from ..ranks.channel import Alone, Channel
from ..ranks.together import on_all, on_first
from .commit import FORMAT, META_FILE, TENSOR_FOLDER, Commit, CommitError, pack_commit, read_commit, unpack_commit
from .disk import make_folder, rename, sync_path, sync_tree

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

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
        channel: the ranks of the run.
        group: their process group, for DCP; None if the channel is of all ranks.
    """

    def __init__(
        self, out: Path, keep: int = 2, channel: Channel | None = None, group: "ProcessGroup | None" = None
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least one commit has to be kept")
        self.out = out
        self.folder = out / "commits"
        self.keep = keep
        self._channel = channel or Alone()
        self._group = group

    def save(
        self, step: int, tensors: Mapping[str, "Tensor"], meta: Mapping[str, Any], logs: Sequence[Log] = ()
    ) -> Commit:
        """Commit the state after `step` finished steps; older commits beyond `keep` are removed.

        Args:
            step: the number of finished steps.
            tensors: flat names to tensors; on return their memory is free to change. Each rank gives what it holds: a
                DTensor all ranks of its mesh, another tensor whoever has it, and then all of them the same.
            meta: JSON-able values, of the first rank.
            logs: files below `out`, brought to the disk before their lengths are noted; of the first rank.

        Raises:
            CommitError: on all ranks: it can't be written. Earlier commits are as they were.
        """
        target = self.folder / f"step-{step:06d}"
        partial = target.with_name(target.name + _LEFTOVER)
        what = f"the commit of step {step}"
        try:
            return self._saved(step, what, partial, target, tensors, meta, logs)
        except CommitError:
            with suppress(RunError):  # the one above is told
                self._on_first(what, lambda: self._discard(partial))
            raise

    def _saved(
        self,
        step: int,
        what: str,
        partial: Path,
        target: Path,
        tensors: Mapping[str, "Tensor"],
        meta: Mapping[str, Any],
        logs: Sequence[Log],
    ) -> Commit:
        from .tensors import save_tensors

        self._on_first(what, lambda: self._open(partial, step))
        with self._writing(step):
            save_tensors(partial / TENSOR_FOLDER, tensors, what, self._channel.ranks, self._group)
        return unpack_commit(self._on_first(what, lambda: self._finish(partial, target, step, meta, logs)))

    def _on_first(self, what: str, work: Callable[[], bytes]) -> bytes:
        return on_first(self._channel, what, work, CommitError)

    def _open(self, partial: Path, step: int) -> bytes:
        with self._writing(step):
            make_folder(self.folder)
            _remove(partial)
            partial.mkdir()
        return b""

    def _discard(self, partial: Path) -> bytes:
        """Remove what a save that failed has left: it may be what fills the disk."""
        with suppress(OSError):
            _remove(partial)
        return b""

    def _finish(self, partial: Path, target: Path, step: int, meta: Mapping[str, Any], logs: Sequence[Log]) -> bytes:
        with self._writing(step):
            self._describe(partial, step, meta, logs)
            self._publish(partial, target)
        self._prune(step)
        return pack_commit(read_commit(target))

    def _describe(self, partial: Path, step: int, meta: Mapping[str, Any], logs: Sequence[Log]) -> None:
        content = {
            "format": FORMAT,
            "step": step,
            "files": _sizes(partial),
            "logs": {log.path.relative_to(self.out).as_posix(): log.sync() for log in logs},
            "meta": meta,
        }
        (partial / META_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")
        sync_tree(partial)

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
        content = self._on_first("the newest commit", self._latest)
        return unpack_commit(content) if content else None

    def newest_here(self) -> Commit | None:
        """The newest whole commit as this rank alone sees it, without the others."""
        return next(self._whole([]), None)

    def _latest(self) -> bytes:
        problems: list[str] = []
        for commit in self._whole(problems):
            if problems:
                text = f"Going back to the commit of step {commit.step}: {'; '.join(problems)}."
                warnings.warn(text, RunWarning, stacklevel=5)
            return pack_commit(commit)
        if problems:
            raise CommitError(f"No commit of {self.folder} is whole: {'; '.join(problems)}.")
        return b""

    def load(self, commit: Commit, into: Mapping[str, "Tensor"]) -> None:
        """Fill each rank's tensors from a commit (see `Commit.load_tensors`); an error on one rank is one on all."""
        with on_all(self._channel, f"the tensors of {commit.path.name}", CommitError):
            commit.load_tensors(into)

    def _whole(self, problems: list[str]) -> Iterator[Commit]:
        for folder in self._folders():
            try:
                yield read_commit(folder)
            except CommitError as error:
                problems.append(f"{folder.name} is damaged ({error})")

    def clean(self) -> None:
        """Remove what interrupted saves left behind."""
        self._on_first("the removal of leftovers", self._clean)

    def _clean(self) -> bytes:
        for leftover in sorted(self.folder.glob(f"*{_LEFTOVER}")):
            _remove(leftover)
        return b""

    def clear(self) -> None:
        """Remove all commits, for a run that starts anew in the same directory."""
        self._on_first("the removal of commits", self._clear)

    def _clear(self) -> bytes:
        for folder in reversed(self._folders()):
            self._retire(folder)
        return self._clean()

    def _folders(self) -> list[Path]:
        """Directories of commits, newest first, a replaced one after its successor."""
        entries = list(self.folder.iterdir()) if self.folder.is_dir() else []
        folders = sorted(path for path in entries if _NAME.fullmatch(path.name))
        return sorted(folders, key=lambda path: -_step(path))

    @contextmanager
    def _writing(self, step: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            failure = CommitError(f"The commit of step {step} can't be written: {error}. {self._standing()}")
            failure.origin = error.rank if isinstance(error, RankError) else None
            raise failure from error

    def _standing(self) -> str:
        whole = self.newest_here()
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
