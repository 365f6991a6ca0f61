"""Data of a run: tables (files and datasets) and the order in which a read hands out their rows."""

from .errors import DataError
from .reader import Reader, epoch_order
from .table import Table, open_table

__all__ = ["DataError", "Reader", "Table", "epoch_order", "open_table"]
