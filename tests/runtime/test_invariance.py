"""Same numbers, whatever the split, the company or the interruption."""

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from shardflow.compiler.plan import encode
from shardflow.runtime.commits import CommitStore
from shardflow.runtime.execution import updates
from shardflow.runtime.execution.loop import Run
from shardflow.runtime.models import forward, load_role
from shardflow.runtime.run import run_plan
from shardflow.runtime.values import Record, Value

from .workshop import Result, Workshop, bit_equal, difference, small, untimed

TEXT = small((Path(__file__).parent.parent / "data" / "flows.flow").read_text(encoding="utf-8"))

HEAD = """
from std import k3, whiten, z
from std.scan import discounted
import rewards

flow custom():
    model policy = causal_lm("p")
    model ref = frozen(policy)
    prompts = read("d.jsonl", batch=6 prompts)
    rollout = policy.generate(prompts, n=3, max_new_tokens=6)
    adv = z(rewards.share(rollout.text))
    update policy(adamw(lr=1e-3), minibatch=3 prompts):
        logp = policy.logprobs(rollout)
"""

LOSSES = {
    "linear": "minimize mean(logp * adv) + 0.1 * mean(mean(k3(logp, ref.logprobs(rollout)), over=token)) + 3",
    "sum of sums": "minimize sum(sum(logp, over=token) * adv) / 7 - mean(logp, where=rollout.last)",
    "whitened": "minimize -mean(whiten(logp) * adv)",
    "deviation": "minimize std(logp) + var(mean(logp, over=token))",
    "deviation of a group": "minimize mean(std(sum(logp, over=token), by=prompt))",
    "logarithm of a mean": "minimize -ln(mean(exp(logp)))",
    "product of means": "minimize mean(logp) * mean(logp * adv)",
    "quotient of means": "minimize mean(logp * adv) / (1 + mean(exp(logp)))",
    "counted by the model": "minimize mean(logp * adv, where=exp(logp) < 0.005)",
    "scaled by a count": "minimize mean(logp * adv) * count(logp, where=logp < -5)",
    "quantile": "minimize quantile(logp, q=0.3) + quantile(sum(logp, over=token), q=0.8)",
    "extremes": "minimize max(logp) - min(mean(logp, over=token))",
    "extreme of a group": "minimize mean(max(sum(logp, over=token), by=prompt))",
    "baseline from the model": "minimize mean((adv - stop_gradient(mean(logp))) * logp)",
    "rows of a group": "minimize mean(expand(mean(logp, by=prompt), to=rollout.token) * adv * logp)",
    "a scan": "minimize mean(discounted(logp, 0.9) * adv)",
    "a function of each sequence": "minimize mean(rewards.so_far(logp) * adv)",
    "a function of all sequences": "minimize mean(rewards.centred(logp) * adv)",
    "entropy": "minimize mean(logp * adv) - 0.01 * mean(policy.entropy(rollout))",
    "rank in a group": "minimize mean(where(rank(sum(logp, over=token), by=prompt) == 0, sum(logp, over=token), 0))",
    "rank of tokens": "minimize mean(where(rank(logp, by=prompt) < 4, logp, 0))",
    "rank of all": "minimize mean(where(rank(sum(logp, over=token)) < 4, sum(logp, over=token), 0))",
    "ranks of both": "minimize mean(where(rank(logp) < 9 and rank(logp, by=prompt) < 4, logp, 0))",
}

FLOWS = ("grpo", "ppo_adaptive", "dapo", "dpo", "online_dpo", "async_tis", "gspo")


def same_numbers(a: Result, b: Result, tolerance: float = 1e-9) -> None:
    """Equal tokens; losses, metrics and weights within the tolerance."""
    assert [s["text"] for s in a.samples] == [s["text"] for s in b.samples]
    for ours, theirs in zip(untimed(a.metrics), untimed(b.metrics), strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance)
    for model in a.meta["optimizer_steps"]:
        assert difference(a.weights(model), b.weights(model)) < tolerance


# ---------------------------------------------------------------- micro-batches


@pytest.mark.parametrize("name", FLOWS)
def test_micro_batches_change_nothing(workshop: Workshop, name: str) -> None:
    plan = workshop.compile(TEXT, name, data="d.jsonl")
    same_numbers(workshop.run(plan, micro=40), workshop.run(plan, micro=100_000))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_a_function_of_global_sums(workshop: Workshop, loss: str) -> None:
    plan = workshop.compile(f"{HEAD}        {LOSSES[loss]}\n        metric seen = mean(exp(logp) * adv)\n")
    same_numbers(workshop.run(plan, 2, micro=25), workshop.run(plan, 2, micro=100_000))


TWO_ROOTS = """
from std import z
import rewards

flow custom():
    model policy = causal_lm("p")
    prompts = read("d.jsonl", batch=6 prompts)
    pairs = read("d.jsonl", batch=8 prompts, stream="b")
    rollout = policy.generate(prompts, n=3, max_new_tokens=6)
    adv = z(rewards.share(rollout.text))
    update policy(adamw(lr=1e-3), minibatches=2):
        logp = policy.logprobs(rollout)
        chosen = policy.logprobs(pairs.prompt, pairs.response)
        metric seen = mean(exp(logp)) + max(chosen)
        minimize {loss}
"""


@pytest.mark.parametrize(
    ("loss", "axes"),
    [
        ("-mean(logp * adv) - 0.1 * mean(mean(chosen, over=token))", ["pairs.prompt", "rollout.sample"]),
        ("mean(std(sum(logp, over=token), by=prompts.prompt)) - mean(chosen)", ["pairs.prompt", "prompts.prompt"]),
        ("-mean(logp * adv) * exp(mean(chosen)) + std(chosen)", ["pairs.prompt", "rollout.sample"]),
    ],
)
def test_each_root_of_a_loss_is_cut_on_its_own(
    workshop: Workshop, loss: str, axes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = workshop.compile(TWO_ROOTS.format(loss=loss))
    assert next(i.attrs["loss"]["uncut"] for i in plan.walk() if i.op == "update") == axes
    whole = workshop.run(plan, 2, micro=100_000)
    sizes = []

    def spy(role: Any, seqs: Any, *args: Any) -> Any:
        sizes.append(sum(seqs.lengths))
        return forward(role, seqs, *args)

    monkeypatch.setattr(updates, "forward", spy)
    same_numbers(workshop.run(plan, 2, micro=40), whole)
    assert max(sizes) <= 40 < sum(sizes) / 8


def test_empty_means_are_counted_once(workshop: Workshop) -> None:
    loss = "good = keep(rollout, where=adv > 1)\n        minimize -mean(mean(policy.logprobs(good), by=prompt))\n"
    plan = workshop.compile(HEAD + "        " + loss)
    split, whole = workshop.run(plan, 2, micro=20), workshop.run(plan, 2, micro=100_000)
    assert whole.column("empty_means") and split.column("empty_means") == whole.column("empty_means")


def test_a_function_of_packed_values_sees_the_minibatch(workshop: Workshop) -> None:
    """What it gives there has a mean of 0 in each minibatch; what it gave for the batch has not."""
    lines = "        metric {0} = abs(mean({1}))\n        minimize mean(logp * {1})\n"
    inside = workshop.run(HEAD + lines.format("inside", "rewards.centred(rollout.logprobs)"), 1)
    assert inside.column("inside")[0] < 1e-12
    outer = HEAD.replace("    update", "    whole = rewards.centred(rollout.logprobs)\n    update")
    outside = workshop.run(outer + lines.format("outside", "whole"), 1)
    assert outside.column("outside")[0] > 1e-6


@pytest.mark.parametrize(("function", "passes"), [("so_far", 1), ("centred", 2)])
def test_a_promise_about_sequences_saves_a_pass(workshop: Workshop, function: str, passes: int) -> None:
    plan = workshop.compile(f"{HEAD}        minimize mean(rewards.{function}(logp) * adv)\n")
    loss = next(i.attrs["loss"] for i in plan.walk() if i.op == "update")
    assert bool(loss["two_passes"]) == (passes == 2)


def by_hand(folder: Path, record: Record, weights: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
    """Log-probs of a record's tokens, one row after another without padding, by plain transformers code."""
    model = reference_model(folder, weights)
    return torch.cat([row_logprobs(model, c, r) for c, r in rows_of(record)])


def rows_of(record: Record) -> list[tuple[list[int], list[int]]]:
    return list(zip(record.hidden["context"].rows, record.hidden["response"].rows, strict=True))


def reference_model(folder: Path, weights: dict[str, torch.Tensor] | None = None) -> Any:
    model = load_role("causal_lm", str(folder / "p"), dtype=torch.float64).module
    if weights is not None:
        model.load_state_dict(weights)
    return model


def row_logprobs(model: Any, context: list[int], response: list[int]) -> torch.Tensor:
    ids = torch.tensor([context + response])
    logprobs = model(ids).logits[0].log_softmax(-1)
    chosen: torch.Tensor = logprobs[len(context) - 1 : -1].gather(-1, ids[0, len(context) :, None])[:, 0]
    return chosen


def test_an_update_is_what_the_formula_says(workshop: Workshop) -> None:
    """One GRPO step against plain PyTorch: row by row, no padding, no packing, torch's own AdamW."""
    plan = workshop.compile(TEXT.replace("minibatch=4 prompts", "minibatch=8 prompts"), "grpo", data="d.jsonl")
    result = workshop.run(plan, 1, micro=40)
    rollout, adv = result.values[0]["rollout"], result.values[0]["adv"]
    assert isinstance(rollout, Record) and isinstance(adv, Value)
    model, old = reference_model(workshop.folder), rollout.fields["logprobs"].tensor
    ref = by_hand(workshop.folder, rollout).detach()
    losses, gaps = [], []
    for n, (context, response) in enumerate(rows_of(rollout)):
        logp = row_logprobs(model, context, response)
        here = slice(*token_span(rollout, n))
        ratio, a = (logp - old[here]).exp(), adv.tensor[n]
        losses.append(torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2)).mean())
        gaps.append((ref[here] - logp).exp() - (ref[here] - logp) - 1)
    loss = torch.stack(losses).mean() + 0.001 * torch.cat(gaps).mean()
    torch.autograd.backward(loss)
    options = next(i for i in plan.walk() if i.op == "update").attrs["optimizer"]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip_norm"])
    betas = (options["beta1"], options["beta2"])
    torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=betas, eps=options["eps"], weight_decay=options["weight_decay"]
    ).step()
    assert result.column("loss.policy") == pytest.approx([loss.item()], abs=1e-12)
    assert result.column("grad_norm.policy") == pytest.approx([norm.item()], rel=1e-9)
    assert difference(result.weights(), dict(model.named_parameters())) < 1e-9


def token_span(rollout: Record, row: int) -> tuple[int, int]:
    lengths = rollout.fields["length"].rows
    return sum(lengths[:row]), sum(lengths[: row + 1])


# ---------------------------------------------------------------- company


def test_same_rows_in_another_batch_give_the_same_tokens(workshop: Workshop) -> None:
    few, many = (
        workshop.run(HEAD.replace("batch=6", f"batch={n}") + "        minimize mean(logp * adv)\n", 1).values[0]
        for n in (3, 12)
    )
    ours, theirs = few["rollout"], many["rollout"]
    assert isinstance(ours, Record) and isinstance(theirs, Record)
    count = ours.frame.size
    assert ours.hidden["response"].rows == theirs.hidden["response"].rows[:count]
    tokens = len(ours.fields["logprobs"].tensor)
    torch.testing.assert_close(
        ours.fields["logprobs"].tensor, theirs.fields["logprobs"].tensor[:tokens], rtol=0, atol=1e-12
    )


GREEDY = """
import rewards
flow greedy():
    model policy = causal_lm("p")
    rows = read("d.jsonl", batch=24 prompts, shuffle=false)
    rollout = policy.generate(rows, max_new_tokens=5, temperature=0)
    length_of = rewards.share(rows.prompt)
    update policy(adamw(lr=1e-3)):
        win = sum(policy.logprobs(rows.prompt, rows.chosen), over=token)
        minimize mean(policy.logprobs(rollout) * length_of) - mean(win)
"""


def test_the_order_of_rows_is_of_no_matter(workshop: Workshop) -> None:
    straight = workshop.run(GREEDY, 2, micro=50)
    file = workshop.folder / "d.jsonl"
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    turned = workshop.run(GREEDY, 2, micro=50)
    a, b = straight.values[0]["rollout"], turned.values[0]["rollout"]
    assert isinstance(a, Record) and isinstance(b, Record)
    assert a.fields["text"].rows == b.fields["text"].rows[::-1]
    assert straight.column("loss.policy") == pytest.approx(turned.column("loss.policy"), abs=1e-12)
    assert difference(straight.weights(), turned.weights()) < 1e-9


# ---------------------------------------------------------------- resuming

SCHEDULED = TEXT.replace("adamw(lr=1e-3)", 'adamw(lr=1e-3, warmup=2, schedule="cosine")')


@pytest.mark.parametrize("dtype", ("float64", "bfloat16"))
@pytest.mark.parametrize("name", ("grpo", "ppo_adaptive", "dapo", "async_tis", "ema_ref"))
def test_a_resumed_run_is_bit_equal(workshop: Workshop, name: str, dtype: str) -> None:
    plan = workshop.compile(SCHEDULED, name, data="d.jsonl")
    whole = workshop.run(plan, 4, dtype=dtype)
    broken = workshop.interrupted(plan, at=2, steps=4, save_every=2, dtype=dtype)
    assert len(broken.metrics) == 3  # of the third step the record is there, but no commit
    resumed = workshop.run(plan, 4, resume=True, out=broken.out, dtype=dtype)
    assert [v["step"] for v in resumed.metrics] == [v["step"] for v in whole.metrics]
    assert untimed(resumed.metrics) == untimed(whole.metrics)
    assert resumed.samples == whole.samples
    assert bit_equal(resumed.state, whole.state)
    assert without_weather(resumed.meta) == without_weather(whole.meta)


def without_weather(meta: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in meta.items() if k not in ("queues", "frames")}


@pytest.mark.parametrize("name", ("grpo", "async_tis", "dapo"))
def test_a_finished_run_can_be_made_longer(workshop: Workshop, name: str) -> None:
    plan = workshop.compile(TEXT, name, data="d.jsonl")
    whole = workshop.run(plan, 5)
    first = workshop.run(plan, 2)
    longer = workshop.run(plan, 5, resume=True, out=first.out)
    assert untimed(longer.metrics) == untimed(whole.metrics)
    assert bit_equal(longer.state, whole.state)


def test_a_run_survives_being_killed_at_any_moment(workshop: Workshop) -> None:
    """`kill -9` again and again, wherever it hits; what comes out in the end is as if nothing had happened."""
    plan = workshop.compile(TEXT, "async_tis", data="d.jsonl")
    whole = workshop.run(plan, 20)
    rng, out = random.Random(0), workshop.out()
    for _ in range(6):
        killed_run(workshop, encode(plan), out, rng.uniform(0.0, 0.05))
    resumed = workshop.run(plan, 20, resume=has_commit(out), out=out, save_every=1)
    assert untimed(resumed.metrics) == untimed(whole.metrics)
    assert resumed.samples == whole.samples
    assert bit_equal(resumed.state, whole.state)


def has_commit(out: Path) -> bool:
    return CommitStore(out).latest() is not None


def killed_run(workshop: Workshop, plan: bytes, out: Path, seconds: float) -> None:
    """Start or resume a run in a child process and kill it some seconds after it wrote its first line."""
    args = workshop.options(steps=20, save_every=1, out=out, resume=has_commit(out))
    metrics = out / "metrics.jsonl"
    before = metrics.stat().st_size if metrics.exists() else 0
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            run_plan(plan, args)
        finally:
            os._exit(0)
    while not (metrics.exists() and metrics.stat().st_size > before):
        if os.waitpid(child, os.WNOHANG)[0]:
            return  # all steps were made before
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


# ---------------------------------------------------------------- staleness


def test_no_staleness_is_the_synchronous_run(workshop: Workshop) -> None:
    zero = workshop.run(
        workshop.compile(TEXT.replace("max_staleness=2", "max_staleness=0"), "async_tis", data="d.jsonl")
    )
    none = workshop.run(workshop.compile(TEXT.replace(", max_staleness=2", ""), "async_tis", data="d.jsonl"))
    assert untimed(zero.metrics) == untimed(none.metrics)
    assert bit_equal(zero.state, none.state)


@pytest.mark.parametrize("staleness", (1, 2))
def test_a_stale_draw_has_exactly_that_version(
    workshop: Workshop, staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = [dict(reference_model(workshop.folder).named_parameters())]
    step = Run._step

    def spy(run: Run, number: Any) -> Any:
        values = step(run, number)
        weights = run.session.roles["policy"].module.named_parameters()
        versions.append({k: w.detach().clone() for k, w in weights})
        return values

    monkeypatch.setattr(Run, "_step", spy)
    text = TEXT.replace("max_staleness=2", f"max_staleness={staleness}")
    result = workshop.run(workshop.compile(text, "async_tis", data="d.jsonl"), 4)
    for number, values in enumerate(result.values):
        rollout = values["rollout"]
        assert isinstance(rollout, Record)
        sampled = rollout.fields["logprobs"].tensor
        for version in range(number + 1):
            gap = (by_hand(workshop.folder, rollout, versions[version]) - sampled).abs().max()
            assert (gap < 1e-9) == (version == max(0, number - staleness)), (number, version)


# ---------------------------------------------------------------- dtypes and what saves memory


def test_float32_begins_like_float64(workshop: Workshop) -> None:
    plan = workshop.compile(TEXT, "grpo", data="d.jsonl")
    double, single = (workshop.run(plan, 1, dtype=dtype) for dtype in ("float64", "float32"))
    assert [s["text"] for s in double.samples] == [s["text"] for s in single.samples]
    assert single.column("loss.policy") == pytest.approx(double.column("loss.policy"), abs=1e-5)
    assert difference(single.weights(), double.weights()) < 1e-5


@pytest.mark.parametrize("name", ("grpo", "ppo_adaptive", "online_dpo", "ema_ref"))
def test_bfloat16_runs(workshop: Workshop, name: str) -> None:
    result = workshop.run(workshop.compile(TEXT, name, data="d.jsonl"), dtype="bfloat16")
    assert all(w.dtype == torch.bfloat16 for w in result.weights().values())
    masters = [k for k in result.state if k.startswith("optimizer.policy.master")]
    assert masters and all(result.state[k].dtype == torch.float32 for k in masters)


def test_checkpointing_changes_nothing(workshop: Workshop) -> None:
    plain = workshop.run(workshop.compile(TEXT, "grpo", data="d.jsonl"))
    placed = TEXT + "\nplace grpo on local:\n    policy.update on local, checkpointing=true\n"
    plan = workshop.compile(placed, "grpo", data="d.jsonl")
    assert next(i for i in plan.walk() if i.op == "update").attrs["checkpointing"] is True
    same_numbers(workshop.run(plan), plain)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_layers_agree(workshop: Workshop) -> None:
    plan = workshop.compile(TEXT, "grpo", data="d.jsonl")
    plain, compiled = (workshop.run(plan, 1, dtype="float32", compile=c) for c in (False, True))
    assert [s["text"] for s in plain.samples] == [s["text"] for s in compiled.samples]
    assert compiled.column("loss.policy") == pytest.approx(plain.column("loss.policy"), abs=1e-5)
    assert difference(compiled.weights(), plain.weights()) < 1e-5
