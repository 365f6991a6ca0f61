"""How long the search for a placement takes: PPO with four 7B models on A100-80GB, as HybridFlow measured it.

    python benchmarks/placement.py 16 128 1024

Per cluster: booleans of the constraint programs, the proven gap, OR-Tools' deterministic time, and seconds of one core
for the candidates and for the search. Only seconds depend on the machine.
"""

import sys
import time

from shardflow.compiler.cluster import cluster_of
from shardflow.compiler.compilation import check_flow, choose_flow, compile_flow, load_source
from shardflow.compiler.search.assumptions import Lengths
from shardflow.compiler.search.candidates import instance_of
from shardflow.compiler.search.prices import prices_of
from shardflow.compiler.search.problem import problem_of
from shardflow.compiler.search.solve import Effort, solve
from shardflow.compiler.shapes import shape_named
from shardflow.compiler.targets import parse_settings
from shardflow.dsl.modules import STD

SETTINGS = ("batch=1024prompts", "minibatch=128prompts", "epochs=1", "max_new_tokens=1024")


def measured(devices: int, model: str = "llama-2-7b") -> str:
    """One row of the table."""
    source = load_source(STD / "ppo.flow")
    plan = compile_flow(check_flow(source, choose_flow(source, None), parse_settings(SETTINGS)))
    problem = problem_of(plan, Lengths(1024, 1024, 1024))
    cluster = cluster_of("a100", {"nodes": devices // 8, "nic_gb_per_s": 25 / 8})
    start = time.process_time()
    instance = instance_of(problem, prices_of(problem, cluster, {m.name: shape_named(model) for m in problem.models}))
    ready = time.process_time()
    found = solve(instance, Effort(gap=0.002))
    ended = time.process_time()
    if found is None:
        return f"{devices:>8}  no placement fits"
    proof = f"{found.booleans:>9} {found.gap:>8.3%} {found.deterministic:>14.3f}"
    return f"{devices:>8} {found.period:>10.2f} {proof} {ready - start:>11.2f} {ended - ready:>8.2f}"


def main() -> None:
    proof = f"{'booleans':>9} {'gap':>8} {'deterministic':>14}"
    print(f"{'devices':>8} {'period, s':>10} {proof} {'candidates':>11} {'search':>8}")
    for devices in map(int, sys.argv[1:] or ["16", "128", "1024"]):
        print(measured(devices), flush=True)


if __name__ == "__main__":
    main()
