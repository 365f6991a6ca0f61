"""What is computed once, where, and not at all."""

from shardflow.compiler.graph import Node
from shardflow.compiler.passes.prune import prune
from shardflow.compiler.passes.record import record
from shardflow.compiler.passes.simplify import simplify

from .workbench import Workbench, flow


def simplified(bench: Workbench, text: str) -> list[Node]:
    return [*prune(record(simplify(bench.graph(text)))).walk()]


def ops(nodes: list[Node] | tuple[Node, ...], op: str) -> list[Node]:
    return [n for n in nodes if n.op == op]


def body(nodes: list[Node], op: str = "update") -> tuple[Node, ...]:
    (region,) = ops(nodes, op)
    return region.body


def test_equal_calls_are_computed_once(bench: Workbench) -> None:
    repeated = (
        "metric a = mean(rewards.exact_match(rollout.text, prompts.answer))\nmetric b = mean(exp(reward) + exp(reward))"
    )
    nodes = simplified(bench, flow(repeated))
    assert len(ops(nodes, "call")) == 1
    assert [n.attrs["fn"] for n in ops(nodes, "map")].count("exp") == 1


def test_draws_are_never_merged(bench: Workbench) -> None:
    text = flow("again = policy.generate(prompts, n=4, max_new_tokens=32)\nmetric x = mean(again.length)")
    assert len(ops(simplified(bench, text), "generate")) == 2


def test_equal_reads_stay_apart(bench: Workbench) -> None:
    text = flow(
        'other = read("train.jsonl", batch=8 prompts)\nmetric x = count(other.answer)\nmetric y = count(prompts.answer)'
    )
    nodes = simplified(bench, text)
    assert {str(n.type.axis) for n in ops(nodes, "field") if n.attrs["field"] == "answer"} == {
        "other.prompt",
        "prompts.prompt",
    }
    assert len(ops(nodes, "read")) == 2


def test_what_nothing_needs_is_dropped(bench: Workbench) -> None:
    nodes = simplified(bench, flow("x = mean(reward)\nmore = policy.generate(prompts, max_new_tokens=8)"))
    assert [n.name for n in ops(nodes, "generate")] == ["rollout"]
    assert "x" not in {n.name for n in nodes}


def test_what_is_recorded_by_itself_is_kept(bench: Workbench) -> None:
    nodes = simplified(bench, flow("bonus = rewards.exact_match(prompts.prompt, prompts.answer)"))
    assert {n.attrs["metric"] for n in ops(nodes, "record")} == {"reward", "bonus"}


def test_minibatches_do_not_repeat_what_they_cannot_change(bench: Workbench) -> None:
    text = flow(
        """
        model ref = frozen(policy)
        update policy(adamw(lr=1e-6)):
            logp = policy.logprobs(rollout)
            minimize mean(logp * exp(reward)) + mean(k3(logp, ref.logprobs(rollout)))
        """,
        update=False,
    )
    inside = body(simplified(bench, text))
    assert [n.attrs["model"] for n in ops(inside, "logprobs")] == ["policy"]
    assert all(n.args.get("0") is not None for n in ops(inside, "map"))
    assert not any(
        n.attrs.get("fn") == "exp" and n.name != "%" and len(n.args) == 1 and not _live(n, inside) for n in inside
    )


def _live(node: Node, inside: tuple[Node, ...]) -> bool:
    here = {n.id for n in inside}
    return any(r in here for r in node.refs())


def test_reductions_stay_where_they_were_written(bench: Workbench) -> None:
    in_update = flow(
        "update policy(adamw(lr=1e-6)):\n    minimize -mean(policy.logprobs(rollout) * whiten(reward))", update=False
    )
    inside = body(simplified(bench, in_update))
    assert [n.attrs["fn"] for n in ops(inside, "reduce")] == ["mean", "var", "mean"]
    outside = flow(
        "adv = whiten(reward)\nupdate policy(adamw(lr=1e-6)):\n    minimize -mean(policy.logprobs(rollout) * adv)",
        update=False,
    )
    assert [n.attrs["fn"] for n in ops(body(simplified(bench, outside)), "reduce")] == ["mean"]


def test_the_same_reduction_of_batch_and_minibatch_are_two(bench: Workbench) -> None:
    text = flow(
        """
        metric outside = mean(reward)
        update policy(adamw(lr=1e-6)):
            metric inside = mean(reward)
            minimize -mean(policy.logprobs(rollout) * reward)
        """,
        update=False,
    )
    nodes = simplified(bench, text)
    values = {n.attrs["metric"]: n.args["value"] for n in ops(nodes, "metric")}
    assert values["outside"] != values["inside"]


def test_a_value_stays_in_the_block_that_may_be_skipped(bench: Workbench) -> None:
    nodes = simplified(bench, flow("when step > 3:\n    metric x = mean(exp(reward))"))
    assert [n.attrs["fn"] for n in ops(body(nodes, "when"), "map")] == ["exp"]
