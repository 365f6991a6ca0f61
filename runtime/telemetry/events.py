"""TensorBoard events; the library takes a second to import, so it waits for the first step."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Events:
    """Scalars of a run as TensorBoard shows them; `loss.policy` is grouped as `loss/policy`.

    Args:
        folder: where the event files go.
        following: of a continued run, the next step: events from there on, of the part that was lost, are hidden.
            None starts afresh and removes older event files.
    """

    def __init__(self, folder: Path, following: int | None) -> None:
        self._folder = folder
        self._following = following
        self._writer: Any = None
        if following is None:
            for file in folder.glob("events.out.tfevents.*"):
                file.unlink()

    def add(self, record: Mapping[str, float | int]) -> None:
        """Write the numbers of one step; what isn't finite is left out."""
        writer = self._open()
        step = int(record.get("step", 0))
        for name, value in record.items():
            if name != "step" and math.isfinite(value):
                writer.add_scalar(name.replace(".", "/"), value, global_step=step)

    def _open(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=self._following)
        return self._writer

    def flush(self) -> None:
        """Write out what is buffered."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
