"""What a run tells: metrics and samples in files, curves, TensorBoard events, and lines on the screen."""

from .logfile import LogFile
from .plot import plot
from .telemetry import Telemetry

__all__ = ["LogFile", "Telemetry", "plot"]
