"""Shapes of models: what the cost model must know of one, by its name or from its config.json."""

from .config import shape_of_config
from .data import Experts, Latent, ModelShape, ShapeError
from .lookup import shape_named
from .table import KNOWN

__all__ = ["KNOWN", "Experts", "Latent", "ModelShape", "ShapeError", "shape_named", "shape_of_config"]
