"""Chooses where an operator runs."""

from collections.abc import Iterable, Mapping, Sequence

from ... import plan as p
from .bring import Courier
from .holdings import SCORING, Holdings
from .scope import Scope
from .sites import EVEN, LENGTH, SCALAR, WHOLE, Site


class Chooser(Courier):
    """placed: the meshes of values that `place` names."""

    def __init__(self, plan: p.Plan, holdings: Holdings, world: str, placed: Mapping[str, str]) -> None:
        super().__init__(plan, holdings, world)
        self.placed = placed

    def _site_of(self, scope: Scope, i: p.Instruction, names: Sequence[str]) -> Site:
        """Where an operator runs: where `place` says, dealt as rows are there; else where most of what it reads is."""
        rows = [n for n in names if scope.find(n).axis is not None]
        if scope.fixed is not None or i.out not in self.placed:
            return self._site(scope, names)
        by_length = Site(self.placed[i.out], LENGTH)
        roots = (self.plan.root(scope.find(n).axis) for n in rows)
        is_there = any(root is not None and scope.is_dealt(root, by_length) for root in roots)
        return by_length if is_there else Site(by_length.mesh, EVEN)

    def _site(self, scope: Scope, names: Iterable[str]) -> Site:
        """Where most of some values is, or will be; by length rather than evenly."""
        if scope.fixed is not None:
            return scope.fixed
        rows = [n for n in names if scope.find(n).axis is not None]
        there = {n: self._whereabouts(scope, n) for n in rows}
        candidates = list(dict.fromkeys(s for sites in there.values() for s in sites if s.is_dealt))
        if not candidates:
            return Site(self._default_mesh(), EVEN)
        return min(candidates, key=lambda s: (self._weight(scope, rows, there, s), s.deal != LENGTH))

    def _whereabouts(self, scope: Scope, name: str) -> list[Site]:
        """Where rows of a value are or will be."""
        return [Site(s.mesh, EVEN) if s.deal == WHOLE else s for s in self._sites(scope, name)]

    def _weight(self, scope: Scope, rows: Iterable[str], there: Mapping[str, list[Site]], site: Site) -> int:
        """What would have to be moved: a token counts more than a sample, and a sample more than a prompt.

        Rows of a file needn't be moved: they are read where they are wanted.
        """
        moved = (n for n in rows if site not in there[n] and not self._is_read(scope, n))
        return sum(10 ** len(self.plan.chain(scope.find(n).axis)) for n in moved)

    def _is_read(self, scope: Scope, name: str) -> bool:
        i = scope.find(name)
        return i.op == "read" or (i.op == "field" and self._is_read(scope, i.reads[0]))

    def _default_mesh(self) -> str:
        phases = (i for i in self.plan.walk() if i.op in (*SCORING, "generate"))
        return next((self.holdings.spot(i).mesh for i in phases), self.world)

    def _are_scalars(self, scope: Scope, names: Iterable[str]) -> bool:
        return all(scope.find(n).axis is None for n in names)

    def _scalar_site(self, scope: Scope, i: p.Instruction, names: Iterable[str]) -> Site:
        is_placed = scope.fixed is None and i.out in self.placed
        return Site(self.placed[i.out] if is_placed else self._scalar_mesh(scope, names), SCALAR)

    def _scalar_mesh(self, scope: Scope, names: Iterable[str]) -> str:
        """Where scalars are computed further: on every rank if they are known to every rank."""
        if scope.fixed is not None:
            return scope.fixed.mesh
        meshes = [s.mesh for n in names for s in scope.sites(n)[:1]]
        return next((m for m in meshes if m != self.world), self.world)
