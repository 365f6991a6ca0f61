"""The cost of a phase: what the search, the simulator and the checks ask."""

from functools import lru_cache

from ..cluster import Slice
from ..shapes import ModelShape
from .constants import DEFAULT, Constants, CostError
from .generate import generation_cost
from .passes import forward_cost, training_cost
from .result import Cost
from .work import Forward, Generate, Layout, Train, Work


@lru_cache(65536)
def phase_cost(shape: ModelShape, work: Work, layout: Layout, devices: Slice, constants: Constants = DEFAULT) -> Cost:
    """Seconds and bytes of one phase of a step.

    work: Train, Forward or Generate, with the tokens of all devices. layout: it takes all devices of the slice.
    Raises CostError where the layout takes another number of devices, or more stages than there are layers.
    """
    if layout.devices != devices.devices:
        raise CostError(f"the layout takes {layout.devices} devices, but the mesh has {devices.devices}")
    if layout.pp * layout.chunks > shape.layers:
        raise CostError(f"{layout.pp} stages of {layout.chunks} chunks, but `{shape.name}` has {shape.layers} layers")
    match work:
        case Train():
            return training_cost(shape, work, layout, devices, constants)
        case Forward():
            return forward_cost(shape, work, layout, devices, constants)
        case Generate():
            return generation_cost(shape, work, layout, devices, constants)
