"""`flowc simulate`: a flow, a decision or a plan; reports, traces, scaling curves, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardflow.compiler.cli import main, parser
from shardflow.compiler.compilation import check_flow, choose_flow, load_source
from shardflow.compiler.passes.check.place import Target
from shardflow.compiler.planning import wishes_of
from shardflow.compiler.search.decision import Decision, decode, encode
from shardflow.compiler.simulation.searched import searched
from shardflow.compiler.simulation.setup import replicas_of

from .simulated import ppo, split

FLOW = """\
from std.advantages import at_last_token, whiten
from std.losses import clipped_policy_loss, clipped_value_loss
from std.scan import gae

flow ppo(batch=256 prompts, stale: int = 0):
    model policy = causal_lm("Qwen/Qwen2.5-1.5B-Instruct")
    model ref = frozen(policy)
    model critic = value_model("Qwen/Qwen2.5-1.5B-Instruct")
    model judge = frozen(reward_model("Qwen/Qwen2.5-1.5B-Instruct"))
    prompts = read("prompts.jsonl", batch=batch)
    rollout = policy.generate(prompts, max_new_tokens=1024, max_staleness=STALE)
    score = judge.score(rollout)
    values = critic.values(rollout)
    kls = rollout.logprobs - ref.logprobs(rollout)
    adv = gae(at_last_token(score, rollout) - 0.05 * kls, values, 1.0, 0.95)
    good = whiten(adv)
    update policy(adamw(lr=1e-6), minibatch=64 prompts):
        logp = policy.logprobs(rollout)
        minimize mean(clipped_policy_loss(logp, rollout.logprobs, good, 0.2, 0.2))
    update critic(adamw(lr=5e-6), minibatch=64 prompts):
        minimize mean(clipped_value_loss(critic.values(rollout), values, adv + values, 0.2))
"""

Output = pytest.CaptureFixture[str]


@pytest.fixture
def flows(tmp_path: Path) -> dict[int, Path]:
    """PPO of 1.5B models with staleness 0, 1 and 2."""
    paths = {k: tmp_path / f"ppo{k}.flow" for k in range(3)}
    for stale, path in paths.items():
        path.write_text(FLOW.replace(", stale: int = 0", "").replace("STALE", str(stale)), encoding="utf-8")
    return paths


def run(*args: object) -> int:
    return main(["simulate", *(str(a) for a in args)])


def answered(capsys: Output, *args: object) -> Any:
    assert run(*args, "--format", "json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "decision.json"
    path.write_bytes(encode(split(1)))
    return path


# ---------------------------------------------------------------- flows


@pytest.mark.parametrize("cluster", ["8xH100", "2x8xA100"])
@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_searched_decision_takes_the_time_it_was_found_for(
    flows: dict[int, Path], capsys: Output, staleness: int, cluster: str
) -> None:
    """The simulator's steps are the search's to the last digit, whatever was found: orders, ways of weights, hosts."""
    got = answered(capsys, flows[staleness], "--cluster", cluster, "--as-decided", "--steps", 6)
    assert got["step"]["mean"] == pytest.approx(got["step"]["decided"], abs=1e-9)
    for step in got["steps"][staleness:]:
        assert step["seconds"] == pytest.approx(got["step"]["decided"], abs=1e-9)


def test_drawn_lengths_are_near_what_was_decided_and_seeded(flows: dict[int, Path], capsys: Output) -> None:
    one, same, other = (answered(capsys, flows[1], "--cluster", "8xH100", "--seed", s) for s in (1, 1, 2))
    assert one == same and one["step"]["mean"] != other["step"]["mean"]
    assert one["step"]["mean"] == pytest.approx(one["step"]["decided"], rel=0.15)
    assert one["step"]["p95"] >= one["step"]["mean"]
    assert sum(one["slots"][0]["shares"].values()) == pytest.approx(1)


def test_the_report_says_what_a_reader_asks(flows: dict[int, Path], capsys: Output) -> None:
    assert run(flows[0], "--cluster", "8xH100", "--steps", 4, "--mtbf", 0.05, "--save-every", 2, "--restart", 20) == 0
    out = capsys.readouterr().out
    assert out.startswith("ppo on 8xH100: 4 steps, lengths drawn with seed 0\n")
    for said in (
        "step  ",
        "p95",
        "decided)",
        "devices used",
        "generate",
        "memory of ranks0-7",
        "failures",
        "Assumed: ",
    ):
        assert said in out


def test_the_curve_has_a_point_for_each_number_of_nodes(flows: dict[int, Path], capsys: Output, tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    args = ("--cluster", "2x2xA100", "--vary", "nodes=2,1", "-o", picture, "--steps", 3)
    assert run(flows[0], *args) == 0
    out = capsys.readouterr().out
    assert "ppo on nodes of 2 × a100_80: 3 steps each" in out
    assert [line.split()[:2] for line in out.splitlines()[-2:]] == [["1", "2"], ["2", "4"]]
    assert picture.read_text().lstrip().startswith("<?xml")
    points = answered(capsys, flows[0], *args[:4], "--steps", 3)
    assert [p["nodes"] for p in points] == [1, 2] and points[0]["efficiency"] == 1
    assert points[1]["steps_per_hour"] > points[0]["steps_per_hour"]


def test_what_doesn_t_fit_is_a_point_without_a_time(flows: dict[int, Path], capsys: Output) -> None:
    big = ("--model", "policy=llama-3.1-70b", "--model", "critic=llama-3.1-70b")
    assert run(flows[0], "--cluster", "1x8xH100", "--vary", "nodes=1,8", "--steps", 2, *big) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].endswith("doesn't fit: too little memory") and lines[-1].split()[1] == "64"


def test_a_flow_in_error_is_reported_as_check_does(flows: dict[int, Path], capsys: Output) -> None:
    flows[0].write_text(flows[0].read_text().replace("judge.score", "judge.scores"))
    assert run(flows[0], "--cluster", "8xH100") == 1
    assert "scores" in capsys.readouterr().err


# ---------------------------------------------------------------- decisions


@pytest.mark.parametrize("made", [ppo(), split(0), split(2)], ids=["ppo", "grpo", "stale"])
def test_a_decision_is_simulated_as_it_was_decided(capsys: Output, file: Path, made: Decision) -> None:
    file.write_bytes(encode(made))
    got = answered(capsys, file)
    assert got["step"]["mean"] == pytest.approx(made.period, abs=1e-9)
    assert not got["options"]["drawn"] and "decided time" in got["assumptions"][-1]


def test_the_decision_of_a_plan_is_found(flows: dict[int, Path], capsys: Output, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    args = ("compile", str(flows[0]), "--target", "multi", "--cluster", "8xH100")
    assert main([*args, "-o", str(plan)]) == 0
    assert main([*args, "--emit", "decision"]) == 0
    decided = decode(capsys.readouterr().out.encode())
    got = answered(capsys, plan, "--steps", 3)
    assert got["step"]["mean"] == pytest.approx(decided.period, abs=1e-9)


def test_a_decision_that_can_t_run_is_refused(capsys: Output, file: Path) -> None:
    file.write_bytes(encode(split(1)).replace(b'"ref.logprobs"\n      ]', b'"nobody"\n      ]'))
    assert run(file) == 2
    assert "something waits for `nobody`" in capsys.readouterr().err


def test_a_trace_is_written(capsys: Output, file: Path, tmp_path: Path) -> None:
    trace = tmp_path / "out.json"
    assert run(file, "--trace", trace, "--steps", 3) == 0
    assert f"{trace}: open it in https://ui.perfetto.dev" in capsys.readouterr().out
    assert {e["ph"] for e in json.loads(trace.read_text())["traceEvents"]} >= {"M", "X", "C", "s", "f"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("FLOW",), "needs --cluster"),
        (("FLOW", "--cluster", "8xH10"), "no device `H10`"),
        (("FLOW", "--cluster", "8xH100", "--steps", "0"), "--steps 0"),
        (("FLOW", "--cluster", "8xH100", "--mtbf", "0"), "--mtbf 0"),
        (("FLOW", "--cluster", "8xH100", "--vary", "gpus=1"), "write nodes=1,2,4"),
        (("FLOW", "--cluster", "8xH100", "--vary", "nodes=1,x"), "write nodes=1,2,4"),
        (("FLOW", "--cluster", "8xH100+4xA100", "--vary", "nodes=1"), "some of 8 × h100 and 4 × a100_80"),
        (("FLOW", "--cluster", "8xH100", "-o", "x.png"), "give --vary"),
        (("FLOW", "--cluster", "8xH100", "--vary", "nodes=1", "--trace", "x.json"), "leave out --vary"),
        (("FLOW", "--cluster", "8xH100", "--vary", "nodes=1", "-o", "x.pdf"), ".png or a .svg"),
        (("JSON", "--cluster", "8xH100"), "simulate the flow instead"),
        (("BAD",), "this is no placement decision"),
        (("PLAN",), "compile it with --cluster"),
    ],
)
def test_options_that_say_nothing_are_refused(
    flows: dict[int, Path], file: Path, tmp_path: Path, capsys: Output, args: tuple[str, ...], said: str
) -> None:
    (tmp_path / "bad.json").write_text('{"flow": 1}')
    (tmp_path / "plan.json").write_text('{"program": []}')
    known = {"FLOW": flows[0], "JSON": file, "BAD": tmp_path / "bad.json", "PLAN": tmp_path / "plan.json"}
    assert run(*(known.get(a, a) for a in args)) == 2
    assert said in capsys.readouterr().err


# ---------------------------------------------------------------- engines


@pytest.mark.parametrize("cluster", ["8xH100", "16xA100-40"])
def test_engines_are_those_that_were_decided(flows: dict[int, Path], cluster: str) -> None:
    """The seconds of a generation, its engines' sequences at once included, come out as the search had them."""
    args = parser().parse_args(["simulate", str(flows[0]), "--cluster", cluster, "--response-tokens", "400"])
    source = load_source(flows[0])
    checked = check_flow(source, choose_flow(source, None), {}, Target(planned=True))
    found = searched(checked, wishes_of(args, checked))
    phase = found.decision.phase("policy.generate")
    replicas = replicas_of(phase, found.decision.slot(phase.slot), found.problem, found.prices)
    assert replicas.expected == pytest.approx(phase.seconds, rel=1e-9)
    assert replicas.count == phase.layout.dp and replicas.work.sequences == phase.samples
