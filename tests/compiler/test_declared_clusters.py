"""`cluster` statements that say what their devices can do, and `--cluster` with the name of one."""

from pathlib import Path

import pytest

from shardflow.compiler.cli import main, parser
from shardflow.compiler.cluster import OVERRIDES, PRESETS, ClusterError, cluster_of, parse_cluster
from shardflow.compiler.cluster import local as local_module
from shardflow.compiler.compilation import Checked, load_source
from shardflow.compiler.passes.check.place import declared_cluster
from shardflow.compiler.planning import Wishes, wishes_of
from shardflow.dsl.vocabulary import CLUSTER_OPTIONS

from .workbench import Workbench, flow

Output = pytest.CaptureFixture[str]
MODEL = ["--model", "policy=llama-3.1-8b", "--prompt-tokens", "64", "--response-tokens", "32,64"]


def declared(options: str, device: str = "h100") -> str:
    return flow() + f"\ncluster lab = {device}({options})\n"


def run(capsys: Output, *args: str) -> tuple[int, str, str]:
    status = main(args)
    said = capsys.readouterr()
    return status, said.out, said.err


def wishes(checked: Checked, cluster: str) -> Wishes:
    return wishes_of(parser().parse_args(["explain", "tune.flow", "--cluster", cluster]), checked)


# ---------------------------------------------------------------- what a statement says


def test_a_statement_takes_what_a_file_does() -> None:
    assert set(CLUSTER_OPTIONS) == {"nodes", "devices", *OVERRIDES}
    assert all(CLUSTER_OPTIONS[name].doc for name in OVERRIDES)


@pytest.mark.parametrize(
    ("options", "code", "said", "help"),
    [
        ("memry_gb=40", "E0105", "h100 has no option `memry_gb`", "did you mean `memory_gb`?"),
        ("memory_gb=0", "E0113", "option `memory_gb` is above 0, not 0", None),
        ("tflops=-1.5", "E0113", "option `tflops` is above 0, not -1.5", None),
        ('link_gb_per_s="fast"', "E0113", "option `link_gb_per_s` takes a number, not `fast`", None),
        ("devices=0", "E0113", "option `devices` is at least 1, not 0", None),
    ],
)
def test_an_option_that_can_not_be_is_refused(
    bench: Workbench, options: str, code: str, said: str, help: str | None
) -> None:
    (found,) = bench.found(declared(options))
    assert (found.code, found.message, found.help) == (code, said, help)


@pytest.mark.parametrize(("device", "ranks"), [("gb200", 72), ("h100", 8), ("gb200(nodes=2)", 144)])
def test_a_node_is_as_large_as_the_presets(bench: Workbench, device: str, ranks: int) -> None:
    text = flow() + f"\nplace tune on {device}:\n    policy on nodes\n"
    assert bench.checked(text, target="multi").placement.ranks == ranks
    assert cluster_of(device.split("(")[0]).devices in (ranks, ranks // 2)


def test_another_number_of_ranks_keeps_the_figures(bench: Workbench) -> None:
    text = flow() + "\nplace tune on h100(nodes=2, memory_gb=40):\n    policy on nodes\n"
    (found,) = bench.found(text, target="multi", ranks=4)
    assert found.help is not None and "`h100(nodes=2, devices=2, memory_gb=40)`" in found.help


def test_this_machine_may_be_said_to_have_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_module, "GPUS", Path("/nowhere"))
    lab = cluster_of("local", {"nodes": 2, "devices": 3, "memory_gb": 4}, "lab")
    assert (lab.name, [n.devices for n in lab.nodes], lab.nodes[0].device.memory) == ("lab", [3, 3], 4e9)


# ---------------------------------------------------------------- `--cluster lab`


def test_less_memory_holds_less(bench: Workbench, capsys: Output) -> None:
    pytest.importorskip("ortools")
    for options, fits in (("devices=2", True), ("devices=2, memory_gb=40", False)):
        path = str(bench.write(declared(options)))
        status, out, err = run(capsys, "explain", path, "--cluster", "lab", *MODEL)
        assert (status, "E0507" in err) == ((0, False) if fits else (1, True)), err
        assert not fits or "placement on lab" in out


def test_a_name_of_the_file_comes_with_its_figures(bench: Workbench) -> None:
    checked = bench.checked(declared("nodes=2, devices=4, tflops=500"))
    found = declared_cluster(checked.source.module, checked.graph, checked.source.places, "lab")
    assert found is not None and found.parts[0].options == {"nodes": 2, "devices": 4, "tflops": 500}
    lab = wishes(checked, "lab").cluster
    assert (lab.name, lab.devices, lab.nodes[0].device.flops) == ("lab", 8, 5e14)
    assert lab.nodes[0].device.memory == PRESETS["h100"].memory
    assert wishes(checked, "2xH100").cluster == parse_cluster("2xH100")


def test_an_engine_runs_as_many_sequences_as_the_cluster_says(bench: Workbench, capsys: Output) -> None:
    for number in (3, 5):
        path = str(bench.write(declared(f"devices=2, engine_sequences={number}")))
        _, out, err = run(capsys, "explain", path, "--cluster", "lab", *MODEL)
        assert f"an engine runs at most {number} sequences at once" in out, err


def test_a_name_may_stand_for_another(bench: Workbench) -> None:
    checked = bench.checked(declared("nodes=2, memory_gb=40") + "\ncluster mine = lab\n")
    assert wishes(checked, "mine").cluster.nodes == cluster_of("h100", {"nodes": 2, "memory_gb": 40}).nodes


SUM = "\ncluster fast = h100(nodes=2)\ncluster lab = fast + a100(devices=4, memory_gb=40)\n"


def test_nodes_of_several_kinds_are_added(bench: Workbench) -> None:
    checked = bench.checked(flow() + SUM)
    lab = wishes(checked, "lab").cluster
    assert [(p.first, p.devices, p.device.name) for p in lab.pools] == [(0, 16, "h100"), (16, 4, "a100_80")]
    assert lab.pools[1].device.memory == 40e9
    assert wishes(checked, "16xH100+4xA100").cluster.devices == 20


def test_lines_name_nodes_of_any_kind(bench: Workbench) -> None:
    text = flow() + SUM + "\nplace tune on lab:\n    policy.update on nodes[2]\n    policy.generate on nodes[0:2]\n"
    placement = bench.checked(text, target="multi").placement
    assert placement.ranks == 20
    assert {n: (s.first, s.ranks) for n, s in placement.spots.items()} == {
        "policy.update": (16, 4),
        "policy.generate": (0, 16),
    }
    (found,) = bench.found(text, target="multi", ranks=8)
    assert found.code == "E0505" and "16 h100 devices (2 nodes of 8) and 4 a100 devices" in found.message
    assert found.help == "start 20 ranks (`flowrun --nproc 20`, `flowc --ranks 20`)"


@pytest.mark.parametrize("device", ["local", "cpu(devices=2)"])
def test_this_machine_is_not_added_to_others(bench: Workbench, device: str) -> None:
    (found,) = bench.found(flow() + f"\ncluster lab = h100 + {device}\n")
    assert found.code == "E0504" and "devices of this machine aren't added to others" in found.message


def test_an_unknown_name_is_told_with_those_that_are_known(bench: Workbench, capsys: Output) -> None:
    status, _, err = run(capsys, "explain", str(bench.write(declared("nodes=2"))), "--cluster", "labb")
    assert status != 0 and "no device or cluster `labb`; known are a100, " in err
    assert "and the file's `lab`: did you mean `lab`?" in err
    with pytest.raises(ClusterError, match="no device `lab`; known are"):
        parse_cluster("2xlab", ("lab",))


def test_python_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import shardflow.dsl as fl\n\n@fl.flow\ndef tune():\n    policy = fl.causal_lm('p')\n\n"
        "lab = fl.cluster('lab', fl.h100(nodes=2, memory_gb=40, nic_latency_us=2.5))\n"
        "fl.place(tune, lab, fl.put('policy', on=fl.nodes[0]))\n",
        encoding="utf-8",
    )
    (lab,) = load_source(path, "tune").module.clusters().values()
    written = tmp_path / "mine.flow"
    written.write_text("cluster lab = h100(nodes=2, memory_gb=40, nic_latency_us=2.5)\n", encoding="utf-8")
    assert lab == load_source(written).module.clusters()["lab"]


def test_python_adds_clusters(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import shardflow.dsl as fl\n\n@fl.flow\ndef tune():\n    policy = fl.causal_lm('p')\n\n"
        "fast = fl.cluster('fast', fl.h100(nodes=2))\n"
        "lab = fl.cluster('lab', fast + fl.a100(devices=4, memory_gb=40))\n"
        "fl.place(tune, lab, fl.put('policy', on=fl.nodes[2]))\n",
        encoding="utf-8",
    )
    written = tmp_path / "mine.flow"
    written.write_text(SUM, encoding="utf-8")
    assert load_source(path, "tune").module.clusters() == load_source(written).module.clusters()


def test_the_formatter_keeps_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "a.flow"
    path.write_text("cluster lab=h100( nodes=2,memory_gb = 40 , nic_gb_per_s=3.1 )\n", encoding="utf-8")
    assert main(["fmt", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == "cluster lab = h100(nodes=2, memory_gb=40, nic_gb_per_s=3.1)\n"
