"""The standard library against numbers that other public implementations computed (`tests/data/oracles.json`)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shardflow.runtime import Axes, algebra, load
from shardflow.runtime.models.logits import Wanted, token_statistics
from shardflow.runtime.values import Value

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "data" / "oracles.json").read_text())["cases"]

advantages, losses, kl = load("std.advantages"), load("std.losses"), load("std.kl")
scan, control = load("std.scan"), load("std.control")

Outputs = dict[str, Any]


@pytest.fixture(autouse=True)
def _float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Case:
    """One case with its inputs on axes: groups of samples, and their tokens where it has some."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.params, self.inputs = case["params"], case["inputs"]
        group = self.inputs.get("group", list(range(20)))
        self.axes = Axes([group.count(g) for g in dict.fromkeys(group)], self._lengths())

    def _lengths(self) -> list[int] | None:
        ragged = next((x for x in self.inputs.values() if isinstance(x, list) and isinstance(x[0], list)), None)
        return [len(row) for row in ragged] if ragged else self.inputs.get("length")

    def token(self, name: str, grad: bool = False) -> Value:
        value = self.axes.token(torch.tensor(flat(self.inputs[name])))
        value.tensor.requires_grad_(grad)
        return value

    def sample(self, name: str) -> Value:
        return self.axes.sample(torch.tensor(self.inputs[name], dtype=torch.float64))

    def mean(self, loss: Value, aggregation: str) -> Tensor:
        """The three ways of averaging a loss per token."""
        if aggregation != "token-mean":
            loss = algebra.reduce(aggregation.rsplit("-", 1)[1], loss, self.axes.samples)
        return algebra.reduce("mean", loss, None).tensor


def flat(rows: list[Any]) -> list[float]:
    return [x for row in rows for x in row] if isinstance(rows[0], list) else rows


# ---------------------------------------------------------------- what each case computes


def _gae(c: Case) -> Outputs:
    values = c.token("values")
    adv = scan.gae(c.token("reward"), values, c.params["gamma"], c.params["lam"])
    return {
        "advantages": adv,
        "returns": adv.tensor + values.tensor,
        "whitened_advantages": advantages.whiten(adv),
    }


def _of_reward(name: str, *more: str) -> Callable[[Case], Outputs]:
    """An advantage that is a definition of the reward per sample."""
    return lambda c: {"advantages": getattr(advantages, name)(c.sample("reward"), *(c.sample(m) for m in more))}


def _reinforce(c: Case) -> Outputs:
    return {"advantages": advantages.whiten(scan.discounted(c.token("reward"), c.params["gamma"]))}


def _reinforce_baseline(c: Case) -> Outputs:
    return {"advantages": advantages.whiten(advantages.centred(c.sample("reward")).on(c.axes.tokens))}


def _remax(c: Case) -> Outputs:
    return {"advantages": algebra.pointwise("-", [c.sample("reward"), c.sample("baseline")])}


def _kl(name: str) -> Callable[[Case], Outputs]:
    return lambda c: {"kl": getattr(kl, name)(c.token("logp"), c.token("ref"))}


def _policy(loss: Callable[[Case, Value, Value, Value], Value], aggregation: str) -> Callable[[Case], Outputs]:
    def outputs(c: Case) -> Outputs:
        logp, old, adv = c.token("logp", grad=True), c.token("old_logp"), c.token("advantages")
        total = c.mean(loss(c, logp, old, adv), c.params.get("aggregation", aggregation))
        torch.autograd.backward(total)
        return {"loss": total, "grad_logp": logp.tensor.grad}

    return outputs


def _clip(c: Case) -> tuple[float, float]:
    return c.params["clip_ratio_low"], c.params["clip_ratio_high"]


def _clipped(c: Case) -> Outputs:
    lo, hi, dual = c.params["clip_low"], c.params["clip_high"], c.params["dual_clip"]
    found = _policy(lambda c, *x: losses.dual_clipped_policy_loss(*x, lo, hi, dual), "token-mean")(c)
    clipped = losses.is_clipped(c.token("logp"), c.token("old_logp"), c.token("advantages"), lo, hi)
    return found | {"clip_fraction": algebra.reduce("mean", clipped, None)}


def _value(c: Case) -> Outputs:
    v = c.token("values", grad=True)
    loss = losses.clipped_value_loss(v, c.token("old_values"), c.token("returns"), c.params["clip"])
    total = c.mean(loss, c.params["aggregation"])
    torch.autograd.backward(total)
    return {"loss": total, "grad_values": v.tensor.grad}


def _adaptive(c: Case) -> Outputs:
    beta = [c.params["init"]]
    for kl_now in c.inputs["kl"]:
        beta.append(control.adaptive_kl(beta[-1], kl_now, c.params["target"], c.inputs["n_steps"], c.params["horizon"]))
    return {"value": beta}


def _dpo(c: Case) -> Outputs:
    names = ("policy_chosen", "ref_chosen", "policy_rejected", "ref_rejected")
    rows = losses.dpo_loss(*(torch.tensor(c.inputs[n]) for n in names), c.params["beta"])
    return {"loss": rows.mean()}


def _logprobs(c: Case) -> Outputs:
    wanted = Wanted(torch.tensor(c.inputs["labels"]), 1.0, entropy=True)
    logprobs, entropy = token_statistics(torch.tensor(c.inputs["logits"]), None, wanted)
    return {"logprobs": logprobs, "entropy": entropy}


OURS: dict[str, Callable[[Case], Outputs]] = {
    "gae": _gae,
    "grpo": _of_reward("z"),
    "dr_grpo": _of_reward("centred"),
    "rloo": _of_reward("leave_one_out"),
    "opo": _of_reward("optimal_baseline", "length"),
    "grpo_passk": _of_reward("best_lead"),
    "gpg": _of_reward("gpg"),
    "reinforce_plus_plus": _reinforce,
    "reinforce_plus_plus_baseline": _reinforce_baseline,
    "remax": _remax,
    "kl_k1": _kl("k1"),
    "kl_abs": _kl("kl_abs"),
    "kl_k2": _kl("k2"),
    "kl_k3": _kl("k3_clamped"),
    "clipped_policy_loss": _clipped,
    "clipped_value_loss": _value,
    "gspo": _policy(lambda c, *x: losses.sequence_token_policy_loss(*x, *_clip(c)), "seq-mean-token-mean"),
    "cispo": _policy(lambda c, *x: losses.cispo_loss(*x, *_clip(c)), "token-mean"),
    "gmpo": _policy(lambda c, *x: losses.geometric_policy_loss(*x, *_clip(c)), "token-mean"),
    "adaptive_kl": _adaptive,
    "dpo": _dpo,
    "logprob_entropy": _logprobs,
}


def _name(case: dict[str, Any]) -> str:
    shown = [str(v) for k, v in case["params"].items() if k != "spelled"]
    return "-".join([case["name"], *shown])


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_ours_match(case: dict[str, Any]) -> None:
    outputs = OURS[case["name"]](Case(case))
    assert outputs.keys() == case["outputs"].keys()
    for name, expected in case["outputs"].items():
        ours = outputs[name].tensor if isinstance(outputs[name], Value) else torch.as_tensor(outputs[name])
        theirs = torch.tensor(flat(expected) if isinstance(expected, list) else expected)
        assert ours.shape == theirs.shape, name
        assert ours.dtype == torch.float64, name
        error = float((ours.detach() - theirs).abs().max())
        assert error <= case["tolerance"] * max(1.0, float(theirs.abs().max())), (name, error)


def test_no_case_is_left_out() -> None:
    assert len(CASES) == 32
    assert {c["name"] for c in CASES} == set(OURS)
