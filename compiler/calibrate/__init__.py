"""`flowc calibrate`: the cost model against measurements, and constants fitted to them."""

from .command import calibrate_command
from .predict import Prediction, predict
from .report import Report, reported
from .rows import Row, RowError, read_rows

__all__ = ["Prediction", "Report", "Row", "RowError", "calibrate_command", "predict", "read_rows", "reported"]
