"""Every flow of the acceptance set computes the same on many ranks as in one process."""

import re

import pytest

from ..test_flows import NAMES, TEXT
from ..workshop import Workshop
from .equivalence import alone, assert_same, compiled, together
from .pool import Pool


@pytest.mark.parametrize("name", NAMES)
def test_a_flow_of_the_acceptance_set_is_the_same_on_four_ranks(workshop: Workshop, pool: Pool, name: str) -> None:
    parameter = {} if re.search(rf"flow {name}\([^)]*data=", TEXT) is None else {"data": "d.jsonl"}
    one = alone(workshop, compiled(workshop.folder, TEXT, name, None, **parameter), steps=3)
    four = together(pool, workshop, compiled(workshop.folder, TEXT, name, 4, **parameter), steps=3)
    assert_same(one, four)
