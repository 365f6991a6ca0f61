"""The same numbers in one process and on many ranks, for every layout.

In float64 the same tokens, and losses and weights within 1e-9. Every pair of an algorithm, a number of ranks and a
layout is among the cases that always run; `-m matrix` runs all of them.
"""

import itertools
from collections.abc import Callable

import pytest

from ..test_flows import TEXT
from ..workshop import Workshop
from .equivalence import Outcome, alone, assert_same, compiled, together
from .pool import Pool

ALGORITHMS = {"ppo_adaptive": ("policy", "critic"), "grpo": ("policy",), "dapo": ("policy",), "dpo": ("policy",)}
FROZEN = {"ppo_adaptive": ("ref", "rm"), "grpo": ("ref",), "dapo": (), "dpo": ("ref",)}
SAMPLING = {"ppo_adaptive", "grpo", "dapo"}
LAYOUTS = ("dp", "fsdp", "mixed", "split")
RANKS = (2, 4)

ALL = [*itertools.product(ALGORITHMS, RANKS, LAYOUTS)]
COVER = [
    ("ppo_adaptive", 4, "split"),
    ("ppo_adaptive", 2, "fsdp"),
    ("ppo_adaptive", 4, "mixed"),
    ("ppo_adaptive", 2, "dp"),
    ("grpo", 4, "fsdp"),
    ("grpo", 2, "split"),
    ("grpo", 2, "mixed"),
    ("grpo", 4, "dp"),
    ("dapo", 4, "split"),
    ("dapo", 2, "mixed"),
    ("dapo", 2, "dp"),
    ("dapo", 4, "fsdp"),
    ("dpo", 4, "mixed"),
    ("dpo", 2, "split"),
    ("dpo", 4, "dp"),
    ("dpo", 2, "fsdp"),
]
"""Every pair of an algorithm and a layout, of an algorithm and a number of ranks, and of a layout and a number."""


def placed(flow: str, layout: str, ranks: int) -> str:
    """The acceptance flows with a `place` block for one of them."""
    half = ranks // 2
    update = {
        "dp": f"nodes, dp={ranks}",
        "fsdp": f"nodes, fsdp={ranks}",
        "mixed": f"nodes, fsdp={half}, dp=2" if ranks > 2 else "nodes, fsdp=2",
        "split": f"nodes[0], fsdp={half}",
    }[layout]
    lines = [f"{model}.update on {update}" for model in ALGORITHMS[flow]]
    frozen = {"dp": "nodes", "fsdp": f"nodes, fsdp={ranks}", "mixed": "nodes", "split": "nodes[1]"}[layout]
    lines += [f"{model} on {frozen}" for model in FROZEN[flow]]
    if flow in SAMPLING:
        lines.append(f"policy.generate on {'nodes[1]' if layout == 'split' else 'nodes'}")
    block = "".join(f"\n    {line}" for line in lines)
    return f"{TEXT}\nplace {flow} on cpu(nodes=2, devices={half}):{block}\n"


@pytest.fixture(scope="module")
def references() -> dict[str, Outcome]:
    """The runs in one process, made once each."""
    return {}


Check = Callable[[str, int, str], None]


@pytest.fixture
def check(workshop: Workshop, pool: Pool, references: dict[str, Outcome]) -> Check:
    """Whether an algorithm computes on so many ranks, in a layout, what it computes in one process."""

    def same(flow: str, ranks: int, layout: str) -> None:
        if flow not in references:
            references[flow] = alone(workshop, compiled(workshop.folder, TEXT, flow, None, data="d.jsonl"), steps=3)
        plan = compiled(workshop.folder, placed(flow, layout, ranks), flow, ranks, data="d.jsonl")
        assert_same(references[flow], together(pool, workshop, plan, steps=3))

    return same


@pytest.mark.parametrize(("flow", "ranks", "layout"), COVER)
def test_layouts_compute_the_same(check: Check, flow: str, ranks: int, layout: str) -> None:
    check(flow, ranks, layout)


@pytest.mark.matrix
@pytest.mark.parametrize(("flow", "ranks", "layout"), [case for case in ALL if case not in COVER])
def test_the_rest_of_the_matrix(check: Check, flow: str, ranks: int, layout: str) -> None:
    check(flow, ranks, layout)


def test_the_cover_has_every_pair() -> None:
    for a, b in itertools.combinations(range(3), 2):
        assert {(c[a], c[b]) for c in COVER} == {(c[a], c[b]) for c in ALL}
