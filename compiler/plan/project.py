"""The endpoint projection: of one program for all ranks, what a single rank does.

A rank keeps an instruction if it is on the instruction's mesh, or in one of its groups. All ranks keep them in the same
order, and communicate in that order, so that none waits for another that waits for it.
"""

from collections.abc import Iterable, Mapping

import msgspec

from .schema import Ahead, Instruction, Plan

REGIONS = frozenset({"when", "every", "collect"})


def project(plan: Plan, rank: int) -> Plan:
    """The plan with what one rank does; its hash stays that of the whole, by which ranks know that they agree.

    Raises ValueError if the plan has no such rank.
    """
    if not 0 <= rank < plan.ranks:
        raise ValueError(f"there is no rank {rank}: this plan is for ranks 0 to {plan.ranks - 1}")
    names = {m.name for m in plan.meshes if rank in m.ranks}
    groups = {g.name for g in plan.groups if names & {*g.meshes}}
    sides = {m.name: m.name in names for m in plan.meshes}

    def block(instructions: Iterable[Instruction]) -> tuple[Instruction, ...]:
        found = (_projected(i, names, groups, sides, block(i.body)) for i in instructions)
        return tuple(i for i in found if i is not None)

    ahead = tuple(Ahead(a.staleness, block(a.program), a.keeps, block(a.exchange), a.source) for a in plan.ahead)
    return msgspec.structs.replace(
        plan,
        ahead=ahead,
        program=block(plan.program),
        groups=tuple(g for g in plan.groups if g.name in groups),
        holdings=tuple(h for h in plan.holdings if h.mesh in names),
        meshes=tuple(m for m in plan.meshes if m.name in names),
    )


def _projected(
    i: Instruction, meshes: set[str], groups: set[str], sides: Mapping[str, bool], body: tuple[Instruction, ...]
) -> Instruction | None:
    if i.op in REGIONS:
        takes_part = bool(body) and (not i.groups or bool(groups & {*i.groups}))
        return msgspec.structs.replace(i, body=body) if takes_part else None
    if i.mesh not in meshes and not groups & {*i.groups}:
        return None
    if i.op == "move":
        role = {(True, False): "send", (False, True): "receive"}.get((sides[i.attrs["source"]], sides[i.mesh]), "move")
        return msgspec.structs.replace(i, attrs={**i.attrs, "role": role})
    return msgspec.structs.replace(i, body=body)
