"""Flows of the tests of the search, as problems with costs."""

from functools import cache
from pathlib import Path

from shardflow.compiler.cluster import Cluster, cluster_of
from shardflow.compiler.compilation import check_flow, choose_flow, compile_flow, load_source
from shardflow.compiler.plan import Plan
from shardflow.compiler.search.assumptions import Lengths
from shardflow.compiler.search.candidates import instance_of
from shardflow.compiler.search.instance import Instance
from shardflow.compiler.search.prices import Prices, prices_of
from shardflow.compiler.search.problem import Problem, problem_of
from shardflow.compiler.shapes import shape_named
from shardflow.compiler.targets import parse_settings
from shardflow.dsl.modules import STD

HYBRIDFLOW = ("batch=1024prompts", "minibatch=128prompts", "epochs=1", "max_new_tokens=1024")
"""PPO as HybridFlow measured it (EuroSys 2025, section 8): 8 updates per step, 1,024 tokens to 1,024 tokens."""

FIXED = Lengths(1024, 1024, 1024)


def a100s(devices: int) -> Cluster:
    """HybridFlow's machines: 8 A100-80GB each, 200 Gb/s per machine."""
    return cluster_of("a100", {"nodes": devices // 8, "nic_gb_per_s": 25 / 8})


@cache
def plan_of(name: str, *settings: str) -> Plan:
    """The plan for one process of a flow of the standard library."""
    source = load_source(Path(STD) / name)
    return compile_flow(check_flow(source, choose_flow(source, None), parse_settings(settings)))


def problem(name: str, *settings: str, lengths: Lengths | None = None) -> Problem:
    return problem_of(plan_of(name, *settings), lengths)


def prices(of: Problem, cluster: Cluster, model: str) -> Prices:
    """Costs where all models have one shape."""
    return prices_of(of, cluster, {m.name: shape_named(model) for m in of.models})


@cache
def ppo(model: str, devices: int) -> Instance:
    """HybridFlow's PPO with four models of one size."""
    found = problem("ppo.flow", *HYBRIDFLOW, lengths=FIXED)
    return instance_of(found, prices(found, a100s(devices), model))
