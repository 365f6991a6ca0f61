"""What the blocks that run once more after the last step need of a step."""

from collections.abc import Iterator, Sequence

from ...compiler.plan import Instruction, Plan, original
from .interpreter import site_of


def needed(plan: Plan, blocks: Sequence[Instruction]) -> set[str]:
    """The names of the step's values, regions and weights that some blocks read, of all ranks."""
    reads = _Reads(plan)
    wanted = {name for block in blocks for name in reads.of(block)}
    for instruction in reversed(plan.program):
        if wanted & {instruction.out, *instruction.outs}:
            wanted |= reads.of(instruction)
    return wanted


class _Reads:
    """What instructions of a plan read."""

    def __init__(self, plan: Plan) -> None:
        self._chain = plan.chain
        self._made = {original(i.out): i for i in reversed(plan.walk())}
        self._steps = [i for a in plan.ahead for i in (*a.program, *a.exchange)] + [*plan.program]

    def of(self, block: Instruction) -> set[str]:
        """The values, the regions, the weights that are brought, and what says how rows are dealt."""
        inner = block.walk()
        regions = {str(x.attrs["region"]) for x in inner if x.op == "collected"}
        weights = {f"{x.attrs['holding']}.weights" for x in inner if "holding" in x.attrs}
        values = {name for x in inner for name in x.reads}
        return regions | weights | values | {name for x in inner for name in self._carriers(x)}

    def _carriers(self, x: Instruction) -> Sequence[str]:
        """The values of the step that brought an axis to where an instruction finds it without naming it."""
        if x.op == "expand":
            axis = str(x.attrs["to"])
        elif x.op == "move" and x.attrs["deal"] == "known":
            axis = str(x.attrs["axis"])
        else:
            return ()
        return next((i.outs for i in self._steps if site_of(i) == site_of(x) and axis in self._axes(i)), ())

    def _axes(self, i: Instruction) -> Iterator[str]:
        """The axes of what an instruction makes, or moves."""
        moved = [self._made.get(original(name)) for name in i.reads]
        for made in moved if i.op == "move" else [i]:
            for axis in (made.axis, made.attrs.get("tokens")) if made is not None else ():
                yield from self._chain(axis)
