"""`flowc`: its flags, exit statuses, JSON, settings, and that it stays light."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shardflow.compiler.cli import main, parser
from shardflow.compiler.graph import Size
from shardflow.compiler.targets import BadSetting, parse_settings, split_target

from .workbench import Workbench, flow

Output = pytest.CaptureFixture[str]

WRONG = flow("metric x = reward")
WARNED = flow("x = mean(reward)")


def run(capsys: Output, *args: str) -> tuple[int, str, str]:
    status = main(args)
    said = capsys.readouterr()
    return status, said.out, said.err


# ---------------------------------------------------------------- flags and statuses


def test_the_flags_are_these() -> None:
    """A flag that is added, renamed or dropped changes what scripts may rely on: say so here."""
    commands = next(a.choices for a in parser()._actions if a.dest == "command")
    flags = {name: {o for a in p._actions for o in a.option_strings} - {"-h", "--help"} for name, p in commands.items()}  # type: ignore[union-attr]
    placing = {"--target", "--ranks", "--cluster", "--prompt-tokens", "--response-tokens", "--model", "--runnable"}
    assert flags == {
        "check": {"--set", "--format"},
        "compile": {"--set", "--format", "--emit", "-o", "--output", "--require-sources"} | placing,
        "fmt": {"--check", "--stdout", "--format"},
        "explain": {"--set", "--format"} | placing,
        "graph": {"--set", "--format", "-o", "--output"} | placing,
        "simulate": {
            *("--set", "--format", "--cluster", "--prompt-tokens", "--response-tokens", "--model", "--runnable"),
            *("--steps", "--seed", "--as-decided", "--free", "--mtbf", "--restart", "--save-every", "--commit"),
            *("--trace", "--vary", "-o", "--output"),
        },
        "calibrate": {"--profile", "--fit", "--format"},
    }


@pytest.mark.parametrize("command", ["check", "compile", "explain"])
def test_the_exit_status_says_how_it_went(bench: Workbench, capsys: Output, command: str) -> None:
    assert run(capsys, command, str(bench.write(flow())))[0] == 0
    assert run(capsys, command, str(bench.write(WARNED)))[0] == 0
    assert run(capsys, command, str(bench.write(WRONG)))[0] == 1
    assert run(capsys, command, str(bench.write("flow f(:\n")))[0] == 1
    assert run(capsys, command, str(bench.folder / "nothing.flow"))[0] == 2
    assert run(capsys, command, str(bench.write(flow())), "--set", "=3")[0] == 2


CYCLE = flow().replace("policy.generate", "policy.next.generate")
STALE = flow("when step > 3:\n    x = policy.generate(prompts, max_staleness=1)\n    metric x = mean(x.length)")


@pytest.mark.parametrize(("text", "code"), [(CYCLE, "E0306"), (STALE, "E0314")])
def test_a_check_orders_the_step_too(bench: Workbench, capsys: Output, text: str, code: str) -> None:
    status, _, err = run(capsys, "check", str(bench.write(text)))
    assert status == 1 and f"error[{code}]" in err


def test_what_cannot_be_read_is_named(bench: Workbench, capsys: Output) -> None:
    assert "can't open `nothing.flow`" in run(capsys, "check", "nothing.flow")[2]
    (bench.folder / "latin.flow").write_bytes(b"# \xe9\n")
    status, _, err = run(capsys, "check", str(bench.folder / "latin.flow"))
    assert status == 2 and "isn't UTF-8" in err
    status, _, err = run(capsys, "check", str(bench.folder))
    assert status == 2 and "Traceback" not in err


def test_errors_go_to_standard_error_as_a_person_reads_them(bench: Workbench, capsys: Output) -> None:
    _, out, err = run(capsys, "check", str(bench.write(WRONG)))
    assert out == ""
    assert "error[E0210]: metric `x` must be one number" in err and err.endswith(": 1 error\n")


def test_a_file_of_flows_is_checked_whole_and_each_error_said_once(bench: Workbench, capsys: Output) -> None:
    two = "import rewrds\n" + flow() + flow("metric x = reward").split("\n\n", 1)[1].replace("tune", "other")
    status, _, err = run(capsys, "check", str(bench.write(two)))
    assert status == 1 and err.endswith(": 2 errors\n")
    assert run(capsys, "compile", str(bench.write(two)))[2].count("E0115") == 0  # the import comes first
    both = flow() + flow().split("\n\n", 1)[1].replace("tune", "other")
    assert "`case.flow` holds 2 flows" in run(capsys, "compile", str(bench.write(both)))[2]
    assert run(capsys, "compile", f"{bench.write(both)}:other")[0] == 0
    assert "did you mean `other`?" in run(capsys, "compile", f"{bench.write(both)}:othr")[2]
    assert run(capsys, "check", str(bench.write(both)), "--set", "x=1")[0] == 2


def test_missing_files_are_errors_for_a_run(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(flow().replace("train.jsonl", "trian.jsonl").replace('"tiny"', '"owner/name"')))
    assert run(capsys, "compile", path)[0] == 0
    status, out, _ = run(capsys, "compile", path, "--require-sources", "--format", "json")
    assert status == 1 and [d["code"] for d in json.loads(out)] == ["E0404"]


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize("text", [flow(), WARNED, WRONG], ids=["fine", "warned", "wrong"])
def test_every_command_speaks_json(bench: Workbench, capsys: Output, text: str) -> None:
    path = str(bench.write(text))
    wrong = text == WRONG
    _, out, err = run(capsys, "check", path, "--format", "json")
    assert (err, [d["code"] for d in json.loads(out)]) == ("", {WARNED: ["W0101"], WRONG: ["E0210"]}.get(text, []))
    _, out, err = run(capsys, "compile", path, "--format", "json")
    assert ("program" in json.loads(out)) != wrong
    assert not err or [d["severity"] for d in json.loads(err)] == ["warning"]
    for stage in ("ast", "graph", "plan") if not wrong else ():
        assert json.loads(run(capsys, "compile", path, "--emit", stage, "--format", "json")[1])
    assert json.loads(run(capsys, "explain", path, "--format", "json")[1])
    assert json.loads(run(capsys, "fmt", path, "--check", "--format", "json")[1])


def test_json_of_a_diagnostic(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(WRONG))
    (found,) = json.loads(run(capsys, "check", path, "--format", "json")[1])
    assert found["span"] == {"path": path, "start": {"line": 9, "column": 5}, "end": {"line": 9, "column": 22}}
    assert set(found) == {"code", "severity", "message", "span", "label", "notes", "help"}


def test_json_of_a_page(capsys: Output) -> None:
    page = json.loads(run(capsys, "explain", "E0201", "--format", "json")[1])
    assert page["code"] == "E0201" and page["page"].startswith("# E0201")


# ---------------------------------------------------------------- stages


def test_json_of_no_page(capsys: Output) -> None:
    status, out, err = run(capsys, "explain", "E9999", "--format", "json")
    said = json.loads(out)
    assert status == 2 and said["page"] is None and "E0201" in said["known"] and "E9999" in err


def test_emit_prints_what_a_stage_left(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(flow()))
    assert run(capsys, "compile", path, "--emit", "ast")[1].startswith("flow tune():\n")
    assert run(capsys, "compile", path, "--emit", "graph")[1].startswith("graph tune()\n")
    assert run(capsys, "compile", path, "--emit", "plan")[1].startswith("plan tune for single")
    out = bench.folder / "plan.json"
    assert run(capsys, "compile", path, "-o", str(out))[1] == ""
    assert json.loads(out.read_text(encoding="utf-8"))["flow"] == "tune"


# ---------------------------------------------------------------- many ranks


def test_a_plan_for_many_ranks_and_what_one_of_them_does(bench: Workbench, capsys: Output) -> None:
    command = ("compile", str(bench.write(flow())), "--target", "multi", "--ranks", "4")
    plan = json.loads(run(capsys, *command)[1])
    assert (plan["target"], plan["ranks"]) == ("multi", 4)
    assert run(capsys, *command, "--emit", "plan")[1].startswith("plan tune for multi")
    assert run(capsys, *command, "--emit", "rank:3")[1].startswith("rank 3 of 4 of plan tune ")
    part = json.loads(run(capsys, *command, "--emit", "rank:3", "--format", "json")[1])
    assert part["hash"] == plan["hash"] and len(part["program"]) <= len(plan["program"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "multi", "--ranks", "0"], "`--ranks` is at least 1, not 0"),
        (["--target", "multi", "--ranks", "-4"], "`--ranks` is at least 1, not -4"),
        (["--ranks", "4"], "`--ranks` is for plans of many ranks: give `--target multi` too"),
        (["--emit", "rank:0"], "`--emit rank:0` is of a plan for many ranks: give `--target multi` too"),
        (["--target", "multi", "--emit", "rank:x"], "`--emit rank:x`: this plan is for ranks 0 to 7"),
        (["--target", "multi", "--emit", "rank:8"], "`--emit rank:8`: this plan is for ranks 0 to 7"),
        (["--target", "multi", "--emit", "rank:"], "`--emit rank:`: this plan is for ranks 0 to 7"),
        (["--target", "multi", "--ranks", "1", "--emit", "rank:1"], "this plan is for rank 0 alone"),
        (["--emit", "tree"], "`--emit tree`: it is one of ast, graph, plan, decision or rank:N"),
    ],
)
def test_options_that_say_nothing_are_refused(bench: Workbench, capsys: Output, options: list[str], said: str) -> None:
    status, out, err = run(capsys, "compile", str(bench.write(flow())), *options)
    assert (status, out) == (2, "") and said in err


def test_a_python_flow_is_laid_out_too(capsys: Output) -> None:
    path = f"{Path(__file__).parent.parent.parent / 'examples' / 'algo.py'}:grpo"
    status, out, _ = run(capsys, "compile", path, "--target", "multi", "--ranks", "2", "--emit", "rank:1")
    assert status == 0 and out.startswith("rank 1 of 2 of plan grpo ")


# ---------------------------------------------------------------- settings and targets


SETTINGS = [
    ("x=3", 3),
    ("x=-3", -3),
    ("x=1e-6", 1e-6),
    ("x=true", True),
    ("x=128prompts", Size(128, "prompts")),
    ("x=128 prompts", Size(128, "prompts")),
    ("x=data/train.jsonl", "data/train.jsonl"),
    ('x="3"', "3"),
    ("x=a=b", "a=b"),
    ("x=", ""),
    ("x=nan", "nan"),
    ("x=1e999", "1e999"),
]


@pytest.mark.parametrize(("setting", "value"), SETTINGS, ids=[s[0] for s in SETTINGS])
def test_a_setting(setting: str, value: object) -> None:
    parsed = parse_settings([setting])["x"]
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize("setting", ["x", "=3", "a b=3", "3=4", ""])
def test_a_setting_that_is_none(setting: str) -> None:
    with pytest.raises(BadSetting, match="isn't NAME=VALUE"):
        parse_settings([setting])


def test_settings_reach_the_flow(bench: Workbench, capsys: Output) -> None:
    text = flow("metric x = mean(reward) * scale").replace("batch=8 prompts", "batch=batch")
    path = str(bench.write(text.replace("tune()", "tune(batch=8 prompts, scale=1.0)")))
    _, out, _ = run(capsys, "compile", path, "--set", "batch=16prompts", "--set", "scale=2")
    assert json.loads(out)["params"] == {"batch": "16 prompts", "scale": 2}
    status, out, _ = run(capsys, "check", path, "--set", "batch=16", "--set", "scal=2", "--format", "json")
    assert (status, [(d["code"], d["help"]) for d in json.loads(out)]) == (
        1,
        [("E0105", "did you mean `scale`?"), ("E0113", "write `batch=16 prompts`")],
    )


def test_targets() -> None:
    assert split_target("a.flow") == (Path("a.flow"), None)
    assert split_target("dir/a.flow:grpo") == (Path("dir/a.flow"), "grpo")
    assert split_target("std/grpo.flow")[0].is_file()


# ---------------------------------------------------------------- lightness

HEAVY = ("torch", "transformers", "numpy", "datasets", "rich")


def imported_by(*args: str) -> tuple[set[str], float]:
    """Which heavy packages a command imports, and how long it took, in seconds."""
    script = (
        "import sys; from shardflow.compiler.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        f"print('heavy:', *[m for m in {HEAVY} if m in sys.modules])"
    )
    start = time.perf_counter()
    said = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=60, check=True)
    return set(said.stdout.splitlines()[-1].split()[1:]), time.perf_counter() - start


def test_checking_imports_nothing_heavy(bench: Workbench, record_property: Callable[[str, object], None]) -> None:
    text = (Path(__file__).parent.parent / "data" / "flows.flow").read_text(encoding="utf-8")
    heavy, seconds = imported_by("check", f"{bench.write(text)}:ppo_adaptive")
    record_property("seconds", seconds)
    assert heavy == set()
    assert imported_by("--help")[0] == set()
