"""Rows of measurements: what was run, on what, and what came out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from ..cluster import ClusterError, Device, Slice, device_named
from ..shapes import Experts, ModelShape, ShapeError, shape_named


class RowError(ValueError):
    """A row that can't be read: the message names the row and the field."""


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sizes of a model that has no name. experts, active: of a layer, and of a token; ffn: of one of them."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    kv_heads: int | None = None
    head_dim: int | None = None
    gated: bool = True
    tied: bool = False
    experts: int | None = None
    active: int = 1


class Degrees(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Degrees of parallelism; None: not said. chunks: of a stage, in an interleaved pipeline."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    fsdp: int | None = None
    cp: int | None = None
    ep: int | None = None
    chunks: int | None = None


class _Row(msgspec.Struct, frozen=True, kw_only=True, tag_field="phase"):
    """What every row says. unused: fields of the file that no prediction reads."""

    id: str
    model: str | Sizes
    device: str
    devices: int
    measured: dict[str, float | None]
    dtype: str = "bf16"
    source: str = ""
    unused: tuple[str, ...] = ()


class TrainRow(_Row, frozen=True, kw_only=True, tag="train"):
    """Training at a fixed length. micro_batch, global_batch: sequences, of one data-parallel rank and of all.

    balanced: tokens are dealt evenly to experts by force, as benchmarks do.
    """

    sequence: int
    parallel: Degrees = Degrees()
    micro_batch: int | None = None
    global_batch: int | None = None
    recompute: str | None = None
    compiled: bool | None = None
    balanced: bool = False


class GenerateRow(_Row, frozen=True, kw_only=True, tag="generate"):
    """Sampling at fixed lengths. batch: sequences at once on all devices, or `saturated`: as many as fit."""

    prompt: int
    response: int
    parallel: Degrees = Degrees()
    batch: int | str = "saturated"


class StepRow(_Row, frozen=True, kw_only=True, tag="step"):
    """A whole step of an algorithm. mean_length: tokens of a response. train_batch: responses per optimizer step.

    split: devices that generate and that train, where those are different ones.
    """

    algorithm: str = "grpo"
    staleness: int = 0
    split: dict[str, int] | list[int] | str | None = None
    max_response: int
    mean_length: float | None = None
    prompt: float | None = None
    rollouts_per_step: int
    train_batch: int | None = None
    generate: Degrees = Degrees()
    train: Degrees = Degrees()


Row: TypeAlias = TrainRow | GenerateRow | StepRow

DEGREED = ("parallel", "generate", "train")
SYNONYMS = {"vp": "chunks", "vpp": "chunks", "dp_replicate": "dp", "dp_shard": "fsdp"}
"""Other names of degrees."""

KINDS: dict[str, type[_Row]] = {"train": TrainRow, "generate": GenerateRow, "step": StepRow}

MEASURED: dict[str, tuple[str, ...]] = {
    "train": ("tokens_per_second_per_device", "model_tflops_per_device", "step_seconds"),
    "generate": ("output_tokens_per_second", "output_tokens_per_second_per_device"),
    "step": ("step_seconds",),
}
"""What may have been measured in a phase; the first that a row has is compared. `memory_gib` may stand beside it."""


def phase_of(row: Row) -> str:
    """train, generate or step."""
    return str(row.__struct_config__.tag)


def target_of(row: Row) -> tuple[str, float]:
    """What was measured, and the number. Raises RowError."""
    wanted = MEASURED[phase_of(row)]
    found = next(((n, value) for n in wanted if (value := row.measured.get(n)) is not None), None)
    if found is None:
        raise RowError(f"row `{row.id}`: `measured` holds none of {', '.join(f'`{n}`' for n in wanted)}")
    if not 0 < found[1] < float("inf"):
        raise RowError(f"row `{row.id}`: `measured.{found[0]}` is {found[1]}; it is a number above 0")
    return found


# ---------------------------------------------------------------- reading


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSON file: a list of objects. Raises RowError naming the row and the field; OSError."""
    try:
        document = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise RowError(f"{path.name} is no JSON: {error}") from None
    if not isinstance(document, list):
        raise RowError(f"{path.name} holds no list of rows")
    rows = [_row(path, number, entry) for number, entry in enumerate(document)]
    ids = [row.id for row in rows]
    twice = next((i for i in ids if ids.count(i) > 1), None)
    if twice is not None:
        raise RowError(f"{path.name}: two rows have the id `{twice}`")
    return rows


def _row(path: Path, number: int, entry: Any) -> Row:
    if not isinstance(entry, dict):
        raise RowError(f"{path.name}: row {number} is no object")
    name = f"`{entry['id']}`" if "id" in entry else str(number)
    phase = entry.get("phase")
    if phase not in MEASURED:
        said = "`phase` is missing" if phase is None else f"`phase` is `{phase}`"
        raise RowError(f"{path.name}, row {name}: {said}; it is one of {', '.join(MEASURED)}")
    try:
        row: Row = msgspec.convert(_known(entry, phase), TrainRow | GenerateRow | StepRow)
        _usable(row)
    except (msgspec.ValidationError, RowError, ClusterError, ShapeError) as error:
        raise RowError(f"{path.name}, row {name}: {_plain(str(error), name)}") from None
    return row


def _known(entry: Mapping[str, Any], phase: str) -> dict[str, Any]:
    """What is said of the phase's fields, and the names of the others. A null is as good as nothing."""
    fields = (*KINDS[phase].__struct_fields__, "phase")
    said = {k: v for k, v in entry.items() if k in fields and k != "unused" and v is not None}
    unused = sorted(set(entry) - set(fields))
    for field in DEGREED:
        if isinstance(said.get(field), dict):
            said[field], remarks = _numbered(said[field])
            unused += [f"{field}.{name}" for name in remarks]
    return {**said, "unused": unused}


def _numbered(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The degrees of a layout, and the names of what is a remark: a flag or a word. An unknown number is an error."""
    given = {SYNONYMS.get(name, name): value for name, value in given.items() if value is not None}
    known = Degrees.__struct_fields__
    remarks = [n for n, v in given.items() if n not in known and (isinstance(v, bool) or not isinstance(v, int))]
    return {n: v for n, v in given.items() if n not in remarks}, remarks


def _plain(message: str, name: object) -> str:
    return message.replace("$.", "").replace("Object missing", "missing").removeprefix(f"row {name}: ")


def _usable(row: Row) -> None:
    """Raise unless its model, device and numbers are ones that can be counted with."""
    device_of(row)
    model_of(row)
    target_of(row)
    numbers = {f: getattr(row, f) for f in row.__struct_fields__ if isinstance(getattr(row, f), int | float)}
    for field, value in numbers.items():
        if not isinstance(value, bool) and field != "staleness" and value <= 0:
            raise RowError(f"`{field}` is {value}; it is a number above 0")
    for field in DEGREED:
        for name, value in degrees(getattr(row, field, None)).items():
            if value < 1:
                raise RowError(f"`{field}.{name}` is {value}; it is at least 1")


def degrees(given: object) -> Mapping[str, int]:
    """The degrees that are said."""
    if not isinstance(given, Degrees):
        return {}
    return {k: v for k, v in msgspec.structs.asdict(given).items() if v is not None}


def device_of(row: Row) -> Device:
    """The device it ran on. Raises ClusterError."""
    return device_named(row.device)


def slice_of(row: Row, devices: int) -> Slice:
    """So many of its devices, in usual nodes."""
    device = device_of(row)
    return Slice(device, devices, min(devices, device.per_node))


def model_of(row: Row) -> ModelShape:
    """The model it ran, with experts that are equally busy where that was forced. Raises ShapeError."""
    shape = shape_named(row.model) if isinstance(row.model, str) else _sized(row.id, row.model)
    if isinstance(row, TrainRow) and row.balanced and shape.experts:
        return replace(shape, experts=replace(shape.experts, uneven=0.0))
    return shape


def _sized(name: str, m: Sizes) -> ModelShape:
    experts = Experts(m.experts, min(m.active, m.experts), m.ffn) if m.experts else None
    head_dim = m.head_dim or m.hidden // m.heads
    kv_heads = m.kv_heads or m.heads
    return ModelShape(
        name, m.layers, m.hidden, m.heads, kv_heads, head_dim, m.ffn, m.vocab, m.tied, m.gated, experts=experts
    )
