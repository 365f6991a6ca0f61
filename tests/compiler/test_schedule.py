"""Versions in order, cycles refused, and what runs ahead of the step; one pass or two for a loss."""

import textwrap

import pytest

from shardflow.compiler.dataflow import loss_of
from shardflow.compiler.graph import Node
from shardflow.compiler.plan.text import plan_text

from .workbench import Workbench, flow, one


def order(bench: Workbench, text: str) -> list[str]:
    """Ops (with the model of a phase) of the step's own block, in order."""
    return [f"{n.attrs['model']}.{n.op}" if "model" in n.attrs else n.op for n in bench.scheduled(text).graph.nodes]


# ---------------------------------------------------------------- versions


def test_version_t_is_read_before_it_is_replaced(bench: Workbench) -> None:
    text = flow(update=False) + (
        "    update policy(adamw(lr=1e-6)):\n        minimize -mean(policy.logprobs(rollout) * reward)\n"
        "    metric before = mean(policy.logprobs(rollout))\n"
        "    metric after = mean(policy.next.logprobs(rollout))\n"
    )
    ops = order(bench, text)
    phases = [i for i, op in enumerate(ops) if op == "policy.logprobs"]
    assert phases[0] < ops.index("policy.update") < phases[1]


def test_a_copy_is_made_before_the_update_it_must_not_see(bench: Workbench) -> None:
    text = flow("model ref = frozen(policy)\nnext ref = policy\nmetric x = mean(ref.logprobs(rollout))")
    ops = order(bench, text)
    assert ops.index("ref.logprobs") < ops.index("ref.next_model") < ops.index("policy.update")
    after = order(bench, text.replace("next ref = policy", "next ref = policy.next"))
    assert after.index("policy.update") < after.index("ref.next_model")


@pytest.mark.parametrize(
    "nexts",
    ["next a = b.next\nnext b = a.next", "next a = a.next"],
    ids=["next", "own"],
)
def test_cycles_are_refused(bench: Workbench, nexts: str) -> None:
    body = f"model a = frozen(policy)\nmodel b = frozen(policy)\n{nexts}\n"
    use = "metric x = mean(a.logprobs(rollout) - b.logprobs(rollout))"
    assert bench.codes(flow(body + use)) == ["E0306"]


SWAP = """
model a = frozen(policy)
model b = frozen(policy)
next a = b
next b = a
metric x = mean(a.logprobs(rollout) - b.logprobs(rollout))
"""


def test_a_swap_takes_one_snapshot(bench: Workbench) -> None:
    ops = order(bench, flow(SWAP))
    assert ops[0] == "a.snapshot" and sum("snapshot" in op for op in ops) == 1
    text = plan_text(bench.plan(flow(SWAP)))
    assert "  snapshot a\n" in text and "  next a = b@now\n" in text and "  next b = a@snapshot\n" in text


def test_no_snapshot_is_taken_where_an_order_does(bench: Workbench) -> None:
    text = flow("model ref = frozen(policy)\nnext ref = policy\nmetric x = mean(ref.logprobs(rollout))")
    assert not any("snapshot" in op for op in order(bench, text))


def test_a_snapshot_in_a_block_is_taken_in_it(bench: Workbench) -> None:
    blocks = "    when step > 1:\n" + textwrap.indent(textwrap.dedent(SWAP[SWAP.index("next a") :]), "        ")
    models = SWAP[: SWAP.index("next a")]
    scheduled = bench.scheduled(flow(models + textwrap.dedent(blocks)))
    (when,) = (n for n in scheduled.graph.nodes if n.op == "when")
    assert when.body[0].op == "snapshot"


def test_the_fewest_models_are_copied(bench: Workbench) -> None:
    """A ring of three, and one model whose two readers break it alone."""
    names = "abcd"
    models = "".join(f"model {m} = frozen(policy)\n" for m in names)
    nexts = "next a = d\nnext b = a\nnext c = a\nnext d = ema(d, b, decay=0.5)\n"
    use = "metric x = mean(" + " + ".join(f"{m}.logprobs(rollout)" for m in names) + ")"
    ops = order(bench, flow(models + nexts + use))
    assert [op for op in ops if "snapshot" in op] == ["a.snapshot"]


def test_a_draw_with_the_weights_it_trains_is_refused(bench: Workbench) -> None:
    text = flow().replace("policy.generate", "policy.next.generate")
    (found,) = bench.found(text)
    assert found.code == "E0306"
    assert [n.message for n in found.notes] == ["which waits for this"] * len(found.notes)


# ---------------------------------------------------------------- staleness

STALE = flow(
    """
    ratio = exp(policy.logprobs(rollout) - rollout.logprobs)
    metric ratio = mean(ratio)
    """
).replace("n=4,", "n=4, max_staleness=2,")


def test_a_stale_draw_runs_ahead_with_what_it_is_made_of(bench: Workbench) -> None:
    scheduled = bench.scheduled(STALE)
    ahead = scheduled.ahead[0]
    assert (ahead.staleness, [n.op for n in ahead.nodes]) == (2, ["read", "generate"])
    names = {n.id: n.name for n in ahead.nodes}
    assert [names[i] for i in ahead.keeps] == ["rollout"]
    step = [n.op for n in scheduled.graph.nodes]
    assert "generate" not in step and "update" in step


def staged(bench: Workbench, body: str, stale: int = 2) -> list[tuple[int, int | None, list[str]]]:
    """Of what runs ahead behind a draw: how many steps, behind which, and what is queued."""
    scheduled = bench.scheduled(flow(body).replace("n=4,", f"n=4, max_staleness={stale},"))
    names = {n.id: n.name for a in scheduled.ahead for n in a.nodes}
    return [(a.staleness, a.source, [names[i] for i in a.keeps]) for a in scheduled.ahead[1:]]


SCORED = "model ref = frozen(policy)\nkl = mean(rollout.logprobs - ref.logprobs(rollout))\nmetric kl = kl\n"


def test_what_reads_a_stale_draw_alone_runs_between(bench: Workbench) -> None:
    ((ahead, source, names),) = staged(bench, SCORED)
    assert (ahead, source, len(names)) == (1, 2, 2) and "reward" in names
    assert staged(bench, SCORED, stale=1) == []


@pytest.mark.parametrize(
    "body",
    [
        "metric x = mean(policy.entropy(rollout))",
        "model ref = frozen(policy)\nnext ref = policy\nmetric x = mean(ref.logprobs(rollout))",
        "state b = 0.5\nnext b = b * 0.9\nmetric x = mean(b * rollout.logprobs)",
    ],
    ids=["trained", "replaced", "state"],
)
def test_what_depends_on_a_step_stays_in_it(bench: Workbench, body: str) -> None:
    assert [names for _, _, names in staged(bench, body)] == [["reward"]]


def test_two_delays_have_no_stages(bench: Workbench) -> None:
    body = SCORED + "other = policy.generate(prompts, max_new_tokens=4, max_staleness=1)\nmetric x = mean(other.length)"
    scheduled = bench.scheduled(flow(body).replace("n=4,", "n=4, max_staleness=2,"))
    assert [a.source for a in scheduled.ahead] == [None, None]


def test_a_stale_collect_is_queued_whole(bench: Workbench) -> None:
    text = """\
from std import z

flow tune():
    model policy = causal_lm("tiny")
    collect(8 prompts):
        prompts = read("train.jsonl", batch=8 prompts)
        rollout = policy.generate(prompts, n=4, max_new_tokens=32, max_staleness=1)
        keep prompts where std(rollout.length, by=prompt) > 0
    update policy(adamw(lr=1e-6)):
        minimize mean(exp(policy.logprobs(rollout) - rollout.logprobs) * z(rollout.length))
"""
    scheduled = bench.scheduled(text)
    (ahead,) = scheduled.ahead
    assert [n.op for n in ahead.nodes] == ["collect", "collected"]
    assert len(ahead.keeps) == 1
    assert "collect" not in {n.op for n in scheduled.graph.nodes}


def test_states_of_a_stale_draw_are_delayed_alike(bench: Workbench) -> None:
    body = "state heat = 1.0\nnext heat = heat * 0.99"
    text = flow(body).replace("n=4,", "n=4, max_staleness=1, temperature=heat,")
    (ahead,) = bench.scheduled(text).ahead
    assert [n.op for n in ahead.nodes] == ["read", "state", "generate"]


@pytest.mark.parametrize(
    "body",
    [
        "when step > 3:\n    x = policy.generate(prompts, max_staleness=1)\n    metric x = mean(x.length)",
        "x = policy.generate(rollout.text, max_new_tokens=8, max_staleness=1)\nmetric x = mean(x.length)",
        "x = policy.next.generate(prompts, max_new_tokens=8, max_staleness=1)\nmetric x = mean(x.length)",
        "heat = mean(exp(policy.next.logprobs(prompts.prompt, prompts.answer)))\n"
        "x = policy.generate(prompts, max_new_tokens=8, temperature=heat, max_staleness=1)\nmetric x = mean(x.length)",
    ],
    ids=["when", "fresh", "next", "made of next"],
)
def test_what_cannot_run_ahead_is_refused(bench: Workbench, body: str) -> None:
    assert bench.codes(flow(body)) == ["E0314"]


# ---------------------------------------------------------------- losses

LOSSES = [
    # loss, passes, the axis a micro-batch never cuts
    ("mean(logp * reward)", 1, "rollout.sample"),
    ("-mean(logp * reward)", 1, "rollout.sample"),
    ("mean(sum(logp, over=token) * reward)", 1, "rollout.sample"),
    ("mean(sum(logp, over=token)) / 512", 1, "rollout.sample"),
    ("mean(mean(logp * reward, over=token)) + 0.1 * mean(logp)", 1, "rollout.sample"),
    ("sum(logp * reward) / count(reward)", 1, "rollout.sample"),
    ("mean(logp * reward, where=rollout.logprobs > -3)", 1, "rollout.sample"),
    ("mean(exp(mean(logp, over=token)) * reward)", 1, "rollout.sample"),
    ("mean(logp - mean(logp, by=prompt))", 1, "prompts.prompt"),
    ("mean(log_sigmoid(sum(logp, by=prompt)))", 1, "prompts.prompt"),
    ("mean(where(rank(sum(logp, over=token), by=prompt) == 0, sum(logp, over=token), 0))", 1, "prompts.prompt"),
    ("mean(logp) * mean(logp)", 2, "rollout.sample"),
    ("mean(logp) ** 2", 2, "rollout.sample"),
    ("exp(mean(logp))", 2, "rollout.sample"),
    ("1 / mean(logp)", 2, "rollout.sample"),
    ("mean(logp) / mean(exp(logp))", 2, "rollout.sample"),
    ("mean(logp * reward, where=logp > -3)", 2, "rollout.sample"),
    ("std(logp)", 2, "rollout.sample"),
    ("max(logp)", 2, "rollout.sample"),
    ("mean((logp - mean(logp)) * reward)", 2, "rollout.sample"),
    ("mean(whiten(logp) * reward)", 2, "rollout.sample"),
    ("mean(where(rank(logp) == 0, logp, 0))", 2, "rollout.sample"),
]


@pytest.mark.parametrize(("loss", "passes", "unit"), LOSSES, ids=[loss[0] for loss in LOSSES])
def test_a_loss_that_is_linear_in_its_sums_takes_one_pass(bench: Workbench, loss: str, passes: int, unit: str) -> None:
    body = f"update policy(adamw(lr=1e-6)):\n    logp = policy.logprobs(rollout)\n    minimize {loss}"
    graph = bench.graph(flow(body, update=False))
    found = loss_of(one(graph, "update"), graph.by_id())
    assert found
    assert (2 if found.two_passes else 1, ", ".join(map(str, found.uncut))) == (passes, unit)


def test_the_roots_of_a_loss(bench: Workbench) -> None:
    text = flow(
        """
        more = read("train.jsonl", batch=8 prompts, stream="b")
        update policy(adamw(lr=1e-6), minibatches=2):
            minimize -mean(policy.logprobs(rollout) * reward) - mean(policy.logprobs(more.prompt, more.answer))
        """,
        update=False,
    )
    graph = bench.graph(text)
    found = loss_of(one(graph, "update"), graph.by_id())
    assert found and [str(r) for r in found.roots] == ["more.prompt", "prompts.prompt"]
    assert _names(found.live, graph.by_id()) == ["logprobs", "logprobs"]


def _names(ids: tuple[int, ...], nodes: dict[int, Node]) -> list[str]:
    return [nodes[i].op for i in ids]
