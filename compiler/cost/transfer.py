"""Bytes and seconds of what moves between phases: weights to another layout, rows to another mesh, state to the host.

A rank receives at least what it needs and doesn't hold. Where training's groups are chosen for it, that bound is
reached: HybridFlow (EuroSys 2025), Table 2.
"""

from dataclasses import dataclass

from ..cluster import Slice
from ..shapes import ModelShape
from .collectives import BASE
from .constants import DEFAULT, Constants
from .work import Layout, element


@dataclass(frozen=True)
class Reshard:
    """Weights from the layout in which they are trained to that in which they generate.

    same: on the same devices; else each device of the destination receives all of its shard. dtype: what is sent.
    """

    source: Layout
    target: Layout
    same: bool = True
    dtype: str = "bf16"


def reshard_bytes(shape: ModelShape, move: Reshard) -> float:
    """Bytes that one device of the target receives: its new shard minus what it held (Table 2, third column).

    M/(tp·pp of the target) - M/(tp·pp·fsdp of the source), M the bytes of the model; of experts, which ep cuts over
    some of the same devices as fsdp, M/(tp·pp·ep) and M/(tp·pp·max(fsdp, ep)).
    """
    received = 0.0
    for part, target, source in _parts(shape, move):
        held = part / (move.source.model * source) if move.same else 0.0
        received += max(0.0, part / (move.target.model * target) - held)
    return received


def _parts(shape: ModelShape, move: Reshard) -> tuple[tuple[float, int, int], tuple[float, int, int]]:
    """Bytes of all but the experts, and of these; over how many devices beside tp·pp target and source cut them."""
    size, source = element(move.dtype), move.source
    plain, routed = (shape.parameters - shape.routed) * size, shape.routed * size
    return (plain, 1, source.fsdp), (routed, move.target.ep, max(source.fsdp, source.ep))


def reshard_seconds(shape: ModelShape, move: Reshard, source: Slice, target: Slice, c: Constants = DEFAULT) -> float:
    """Seconds: the slowest of links, NICs into a node of the target, NICs out of the nodes that hold the weights."""
    received = reshard_bytes(shape, move)
    if received == 0:
        return 0
    into, out = _between_nodes(shape, move, source, target)
    link = min(source.device.link, target.device.link)
    inside = received / (link * c.network)
    arriving = into / (target.device.nic * target.per_node * c.network)
    leaving = out / (source.device.nic * source.per_node * c.network)
    return BASE + max(inside, arriving, leaving)


def _between_nodes(shape: ModelShape, move: Reshard, source: Slice, target: Slice) -> tuple[float, float]:
    """Bytes that must enter a node of the target, and leave a node of the source, at least (bounds 2 and 3).

    A copy of the weights is sent to each node once; devices of a node share it through their links.
    """
    needed, held = 0.0, 0.0
    for part, cut, shards in _parts(shape, move):
        needed += min(1.0, target.per_node / (move.target.model * cut)) * part
        held += min(1.0, source.per_node / (move.source.model * shards)) * part
    into = max(0.0, needed - held) if move.same else needed
    return into, held if into else 0.0


def move_bytes(sequences: float, tokens: float, fields: int = 1, element_bytes: float = 4) -> float:
    """Bytes of a batch of packed rows: `fields` values per token, 8 bytes per sequence for its length and number."""
    return tokens * fields * element_bytes + 16 * sequences


def move_seconds(size: float, source: Slice, target: Slice, same: bool = False, c: Constants = DEFAULT) -> float:
    """Seconds for `size` bytes, spread evenly over the devices of both meshes. same: they are on the same devices."""
    if same or size == 0:
        return 0
    inside = source.nodes == target.nodes == 1
    rate = min(_out(source, inside), _out(target, inside)) * c.network
    return BASE + size / rate


def _out(devices: Slice, inside: bool) -> float:
    """Bytes/s of all devices of a mesh together."""
    return devices.devices * (devices.device.link if inside else devices.device.nic)


def host_seconds(size: float, devices: Slice, c: Constants = DEFAULT) -> float:
    """Seconds to move `size` bytes of each device to the host or back: sleep, wake, offload. All do so at once."""
    return size / (devices.device.host * c.network)
