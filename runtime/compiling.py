"""Getting a flow compiled: in a process of its own, since the runtime stands on plans alone."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


class Compiling:
    """A compiler at work beside this process, which can import torch meanwhile.

    Args:
        flow: what to compile, as the command line names it.
        settings: values of parameters, `NAME=VALUE`.
        ranks: how many ranks the plan is for; None compiles for one process.
    """

    def __init__(self, flow: str, settings: Sequence[str], ranks: int | None = None) -> None:
        handle, name = tempfile.mkstemp(prefix="flowrun-", suffix=".json")
        os.close(handle)
        self._path = Path(name)
        package = (__package__ or "").split(".")[0]
        command = [sys.executable, "-m", f"{package}.compiler", "compile", flow, "--require-sources", "-o", name]
        for setting in settings:
            command += ["--set", setting]
        if ranks is not None:
            command += ["--target", "multi", "--ranks", str(ranks)]
        self._process = subprocess.Popen(command)

    def plan(self) -> bytes | None:
        """The plan; None if the compiler refused the flow, and has said why."""
        try:
            return self._path.read_bytes() if self._process.wait() == 0 else None
        finally:
            self._path.unlink(missing_ok=True)
