"""Whether a plan is for as many ranks as are started, and what to type where it isn't."""


def misfit(target: str, ranks: int, started: int, nodes: int = 1) -> str | None:
    """What is wrong with running a plan of a target and so many ranks on those started, on so many nodes; or None."""
    if target != "multi" and started > 1:
        return "this plan is for one process: compile the flow with `--target multi` to run it on many ranks"
    if target != "multi" or ranks == started:
        return None
    otherwise = "for one process" if started == 1 else f"with `--target multi --ranks {started}`"
    return (
        f"this plan is for {ranks} rank{'s' if ranks != 1 else ''}, not for {started}: give "
        f"`--target multi --nproc {_each(ranks, nodes)}, or compile the flow again {otherwise}"
    )


def _each(ranks: int, nodes: int) -> str:
    """How many to start where."""
    if nodes == 1:
        return f"{ranks}`"
    return f"{ranks}` on one node" if ranks % nodes else f"{ranks // nodes}` on each of the {nodes} nodes"
