"""Commits: the state of a run on disk, whole or not at all."""

from .commit import Commit, CommitError, restore_logs
from .store import CommitStore, Log

__all__ = ["Commit", "CommitError", "CommitStore", "Log", "restore_logs"]
