"""What a run tells: metrics and samples in files, curves, TensorBoard events, and lines on the screen."""

from .curves import plot
from .logfile import LogFile
from .telemetry import Telemetry

__all__ = ["LogFile", "Telemetry", "plot"]
