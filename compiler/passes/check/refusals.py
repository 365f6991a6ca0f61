"""Options of a `place` line that a target doesn't carry out, or that say nothing of what the line places."""

from collections.abc import Mapping, Sequence

from ...graph import Operand
from .devices import Cluster, degree

Refusal = tuple[str, str, str]
"""The option, what is said of it, and the help."""


def refusals(
    targets: Sequence[str], options: Mapping[str, Operand], cluster: Cluster, *, is_multi: bool
) -> list[Refusal]:
    """The options of a line for some phases (or a value) that a run would have to ignore."""
    phases = [t for t in targets if "." in t]
    if targets and not phases:
        return [(o, f"option `{o}` of a value, which is no phase of a model, is not supported", LEAVE) for o in options]
    asked = [name for name, value in (("offload", True), ("engine", "vllm")) if options.get(name) == value]
    if is_multi:
        asked += [d for d in ("tp", "pp") if degree(options, d) > 1]
        found = [(o, f"option `{o}` is not supported by `--target multi`", HELP.get(o, LEAVE)) for o in asked]
        return [*found, *_of_no_use(phases, options)]
    if cluster.is_local:
        found = [(o, f"option `{o}` is not supported on a local device", LEAVE) for o in asked]
        return [*found, *_of_no_use(phases, options)]
    return []


LEAVE = "leave it out"
HELP = {
    "tp": "leave it out; a later version carries it out, and `fsdp=` shards weights today",
    "pp": "leave it out; a later version carries it out, and `fsdp=` shards weights today",
    "engine": "leave it out: `transformers` generates",
}


def _of_no_use(phases: Sequence[str], options: Mapping[str, Operand]) -> list[Refusal]:
    """Options that say nothing of the only phase they are given for."""
    found: list[Refusal] = []
    if phases and all(p.endswith(".generate") for p in phases) and degree(options, "fsdp") > 1:
        subject = "`fsdp` of a `generate`, for which the weights are whole on every rank, is not supported"
        found.append(("fsdp", subject, "write `dp`"))
    if phases and not any(p.endswith(".update") for p in phases):
        asked = [o for o in ("checkpointing", "compile") if options.get(o) is True]
        found += [(o, f"option `{o}` of a phase that trains nothing is not supported", LEAVE) for o in asked]
    return found
