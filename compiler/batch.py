"""Rows of each axis of a plan: from what its reads, draws and rounds say before anything runs."""

from collections.abc import Callable

from . import plan as p

Unknown = Callable[[p.Instruction, int | None], int | None]
"""Rows that an instruction opens where the plan doesn't say how many, by the rows above them: of a file, of a keep."""


def unknown(opening: p.Instruction, above: int | None) -> int | None:
    """Nothing is assumed."""
    return None


def count_rows(plan: p.Plan, assumed: Unknown = unknown) -> dict[str, int | None]:
    """Rows of each axis by its name, in one run of the block that opens it; None where only a run knows, as of tokens.

    What a `collect` gathers has the rows that it aims at.
    """
    collected = {r.out: i.attrs["target"] for i in plan.walk() if i.op == "collect" for r in i.body if r.op == "read"}
    rows: dict[str, int | None] = {}
    for i in plan.walk():
        root = f"{p.original(i.out)}.prompt"
        if i.op == "read" and root not in rows:
            rows[root] = collected.get(i.out) or i.attrs.get("batch") or assumed(i, None)
    opening = {i.attrs["rows"]: i for i in reversed(plan.walk()) if i.op in ("generate", "keep")}
    for axis in sorted(plan.axes, key=lambda a: len(plan.chain(a.name))):
        if axis.name not in rows:
            rows[axis.name] = _opened(axis, opening.get(axis.name), rows, assumed)
    return rows


def _opened(axis: p.Axis, opening: p.Instruction | None, rows: dict[str, int | None], assumed: Unknown) -> int | None:
    above = rows.get(axis.parent or "")
    if opening is None:
        return None
    if opening.op == "keep":
        return assumed(opening, above)
    return above * int(opening.attrs.get("n") or 1) if above is not None else None
