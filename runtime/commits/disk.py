"""What makes a write survive a crash: fsync of files and of the directories that name them."""

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Bring a file's content, or a directory's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Bring a directory with all its files to the disk."""
    for path in sorted(folder.rglob("*"), reverse=True):  # what is inside before what names it
        sync_path(path)
    sync_path(folder)


def make_folder(folder: Path) -> None:
    """A directory that is still there after a crash."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_path(folder.parent)


def rename(source: Path, target: Path) -> None:
    """Rename within a directory, for good; a crash leaves either name, never both or none."""
    os.rename(source, target)
    sync_path(target.parent)


def truncate(file: Path, size: int) -> None:
    """Cut a file to a size in bytes."""
    with file.open("r+b") as stream:
        stream.truncate(size)
        os.fsync(stream.fileno())
