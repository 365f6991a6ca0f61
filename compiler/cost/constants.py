"""The few numbers that are fitted, the same for every device, model and framework; everything else is arithmetic."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path


class CostError(ValueError):
    """A question that the cost model can't answer: the message names the value and what is allowed."""


def _fitted(default: float, least: float, most: float, doc: str) -> float:
    return field(default=default, metadata={"doc": doc, "range": (least, most)})


@dataclass(frozen=True)
class Constants:
    """Fitted constants. Each says what it means, and between which bounds it means anything."""

    matmul: float = _fitted(0.753, 0.4, 0.9, "share of the peak FLOP/s that large matrix products reach")
    attention: float = _fitted(0.209, 0.2, 0.8, "share of the peak FLOP/s that attention reaches, counted causally")
    memory: float = _fitted(0.844, 0.6, 0.95, "share of the memory's bandwidth that is reached")
    network: float = _fitted(0.776, 0.5, 0.95, "share of a link's or NIC's bandwidth that collectives reach")
    exposed: float = _fitted(0.163, 0, 0.5, "share of communication behind computation that is paid all the same")
    kernel: float = _fitted(1e-5, 1e-6, 2e-5, "seconds that each kernel takes beside its work")
    engine: float = _fitted(8.9e-6, 0, 1e-4, "seconds of an engine's host per running sequence and decode step")
    between: float = _fitted(0.246, 0, 0.6, "share that a framework adds to a whole step, between and in its phases")


def described(constants: Constants) -> list[tuple[str, float, str]]:
    """Name, value and meaning of each constant."""
    return [(f.name, getattr(constants, f.name), f.metadata["doc"]) for f in fields(Constants)]


def bounds() -> dict[str, tuple[float, float]]:
    """Between which values each constant lies."""
    return {f.name: f.metadata["range"] for f in fields(Constants)}


DEFAULT = Constants()


def write_profile(constants: Constants, path: Path) -> None:
    """Write constants as TOML, with their meaning."""
    docs = {name: doc for name, _, doc in described(constants)}
    lines = [f"{name} = {value!r}  # {docs[name]}" for name, value in asdict(constants).items()]
    path.write_text("\n".join(["# Constants of the cost model.", *lines, ""]), encoding="utf-8")


def read_profile(path: Path) -> Constants:
    """The constants of a profile; those it leaves out are the default's. Raises CostError naming the entry; OSError."""
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise CostError(f"{path.name} is no TOML: {error}") from None
    allowed = bounds()
    for name, value in document.items():
        if name not in allowed:
            raise CostError(f"{path.name}: `{name}` is no constant; they are {', '.join(allowed)}")
        least, most = allowed[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise CostError(f"{path.name}: `{name} = {value}`: it is a number from {least} to {most}")
    return Constants(**{name: float(value) for name, value in document.items()})
