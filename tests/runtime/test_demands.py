"""A plan whose placement asks for more than a run carries out is refused before anything is loaded."""

import argparse

import msgspec
import pytest

from shardflow.compiler.plan import Plan, encode, sealed
from shardflow.runtime.errors import RunError
from shardflow.runtime.run import run_plan

EMPTY = Plan(2, "f", None, "single", ".", "", {}, (), (), (), {}, (), (), ())


def test_what_a_plan_demands_is_named() -> None:
    plan = sealed(msgspec.structs.replace(EMPTY, demands=("tp=2 of policy.update",)))
    with pytest.raises(RunError, match=r"tp=2 of policy\.update.*`--runnable`"):
        run_plan(encode(plan), argparse.Namespace())
