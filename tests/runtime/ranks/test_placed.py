"""A value that `place` puts somewhere is computed there, and the numbers stay those of one process."""

import pytest

from ..test_flows import TEXT
from ..workshop import Workshop
from .equivalence import alone, assert_same, compiled, together
from .pool import Pool

PLACED = {
    "grpo": ("policy.update on nodes[0], fsdp=2", "policy.generate on nodes[1]", "reward on controller"),
    "ppo_adaptive": ("policy on nodes[0], fsdp=2", "adv on nodes[1]", "critic.values on nodes[1]", "ref with policy"),
    "dapo": ("policy.update on nodes[0]", "adv with policy.generate"),
}


@pytest.mark.parametrize("flow", PLACED)
def test_values_are_computed_where_they_are_placed(workshop: Workshop, pool: Pool, flow: str) -> None:
    lines = "".join(f"\n    {line}" for line in PLACED[flow])
    text = f"{TEXT}\nplace {flow} on cpu(nodes=2, devices=2):{lines}\n"
    one = alone(workshop, compiled(workshop.folder, TEXT, flow, None, data="d.jsonl"), steps=3)
    plan = compiled(workshop.folder, text, flow, 4, data="d.jsonl")
    assert_same(one, together(pool, workshop, plan, steps=3))
