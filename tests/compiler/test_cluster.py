"""Clusters: strings, files, presets, what this machine has, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from shardflow.compiler.cluster import (
    PRESETS,
    Cluster,
    ClusterError,
    Node,
    Slice,
    cluster_of,
    device_named,
    local_cluster,
    parse_cluster,
    read_cluster,
)
from shardflow.compiler.cluster import local as local_module
from shardflow.dsl.vocabulary import DEVICES


@pytest.mark.parametrize(
    ("text", "nodes", "device"),
    [
        ("16xH100", (8, 8), "h100"),
        ("2x4xA100-40", (4, 4), "a100_40"),
        ("12xh200", (8, 4), "h200"),
        ("4 x A100-80GB-SXM", (4,), "a100_80"),
        ("8xGB200", (8,), "gb200"),
        ("h20", (8,), "h20"),
        ("1xL40S", (1,), "l40s"),
        ("3×cpu", (1, 1, 1), "cpu"),
    ],
)
def test_a_string_names_nodes_and_devices(text: str, nodes: tuple[int, ...], device: str) -> None:
    cluster = parse_cluster(text)
    assert tuple(n.devices for n in cluster.nodes) == nodes
    assert {n.device.name for n in cluster.nodes} == {device}
    assert cluster.devices == sum(nodes) and cluster.name == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("16xH10", "no device `H10`; known are .*did you mean `h100`"),
        ("0xH100", "0 devices or nodes; it is a number from 1"),
        ("-2xH100", "-2 devices"),
        ("16", "`16` is no cluster: write `16xH100`"),
        ("", "is no cluster"),
        ("2x2x2xH100", "no device `2xH100`|is no cluster"),
    ],
)
def test_a_string_that_names_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        parse_cluster(text)


def test_every_device_of_the_language_is_known() -> None:
    assert set(DEVICES) == {*PRESETS, "a100", "local"}
    for name in set(DEVICES) - {"local"}:
        device = device_named(name)
        assert min(device.flops, device.memory, device.bandwidth, device.link, device.nic, device.host) > 0
    assert device_named("a100") is PRESETS["a100_80"]


@pytest.mark.parametrize("spelled", ["H100-SXM", "h100", "NVIDIA H100 80GB HBM3", "H100_80", "H100-SXM5-80GB"])
def test_a_device_may_be_spelled_as_on_its_label(spelled: str) -> None:
    assert device_named(spelled) is PRESETS["h100"]


def test_less_power_sustains_less() -> None:
    capped = device_named("H100-96GB-500W")
    assert capped is PRESETS["h100_96"]
    assert 0.7 < capped.flops / PRESETS["h100"].flops < 1 and capped.memory == 96 * 2**30


# ---------------------------------------------------------------- files and options


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_replaces_figures_of_a_preset(tmp_path: Path) -> None:
    path = written(tmp_path, 'device = "h100"\nnodes = 4\ndevices = 4\nnic_gb_per_s = 3.1\nnic_latency_us = 10\n')
    cluster = parse_cluster(str(path))
    assert cluster.name == "mine" and cluster.devices == 16
    device = cluster.nodes[0].device
    assert device.nic == pytest.approx(3.1e9) and device.nic_latency == pytest.approx(1e-5)
    assert device.link == PRESETS["h100"].link


def test_a_device_that_is_no_preset_says_all_of_itself(tmp_path: Path) -> None:
    figures = "tflops = 500\nmemory_gb = 64\nbandwidth_gb_per_s = 3200\nlink_gb_per_s = 200\nnic_gb_per_s = 25\n"
    (node,) = read_cluster(written(tmp_path, 'device = "mi250"\ndevices = 4\n' + figures)).nodes
    assert (node.devices, node.device.name, node.device.flops, node.device.memory) == (4, "mi250", 5e14, 64e9)
    with pytest.raises(ClusterError, match=r"mine.toml: the cluster names no `device`, so it must say `memory_gb`"):
        read_cluster(written(tmp_path, "tflops = 500\n"))


def test_nodes_may_be_unequal(tmp_path: Path) -> None:
    text = '[[node]]\ndevice = "h100"\nnodes = 2\n[[node]]\ndevice = "a100"\ndevices = 4\n'
    cluster = read_cluster(written(tmp_path, text))
    assert cluster.devices == 20 and len(cluster.pools) == 2 and cluster.memory == 20 * 80 * 2**30
    assert [cluster.node_of(r) for r in (0, 7, 8, 16, 19)] == [0, 0, 1, 2, 2]
    assert cluster.slice(16).nodes == 2 and cluster.slice(4, 16).device.name == "a100_80"
    assert [(p.first, p.devices, p.per_node, p.device.name) for p in cluster.pools] == [
        (0, 16, 8, "h100"),
        (16, 4, 4, "a100_80"),
    ]


def test_what_unequal_nodes_do_together_is_what_the_worst_of_them_does() -> None:
    h100, a100 = replace(PRESETS["h100"], nic=25e9), PRESETS["a100_80"]
    every = Cluster("mixed", (Node(h100, 8), Node(a100, 4))).slice()
    assert (every.devices, every.per_node, every.nodes) == (12, 8, 2)
    assert every.device.flops == a100.flops and every.device.bandwidth == a100.bandwidth
    assert every.device.nic_latency == max(h100.nic_latency, a100.nic_latency)
    assert every.device.nic == min(h100.nic, a100.nic)
    assert every.device.name == "a100_80 + h100"


def test_pools_are_runs_of_nodes_that_are_alike() -> None:
    h100, a100 = PRESETS["h100"], PRESETS["a100_80"]
    nodes = (Node(h100, 8), Node(h100, 8), Node(h100, 4), Node(h100, 4), Node(a100, 4), Node(h100, 8))
    pools = Cluster("mixed", nodes).pools
    assert [(p.first, p.devices, p.per_node) for p in pools] == [(0, 16, 8), (16, 8, 4), (24, 4, 4), (28, 8, 8)]
    assert [p.devices for p in parse_cluster("20xH100").pools] == [20]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device = 'h100'\nnodez = 2\n", "mine.toml: the cluster has no option `nodez`: did you mean `nodes`"),
        ("device = 'h100'\nnodes = 0\n", "`nodes = 0`: it is a whole number from 1"),
        ("device = 'h100'\nnodes = true\n", "`nodes = True`"),
        ("device = 'h100'\ntflops = -1\n", "`tflops = -1`: it is a number above 0"),
        ("device = 'h100'\nlink_gb_per_s = inf\n", "`link_gb_per_s = inf`"),
        ("device = 'h10'\n", "no device `h10`"),
        ("device = 3\n", "`device = 3`: it is a text"),
        ("nodes = \n", "mine.toml is no TOML"),
        ("nodes = 2\n[[node]]\ndevice = 'h100'\n", "with `\\[\\[node\\]\\]` tables, everything else stands in them"),
        ("[[node]]\ndevice = 'h100'\nx = 1\n", "node table 0 has no option `x`"),
        ("", "the cluster names no `device`"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        read_cluster(written(tmp_path, text))


def test_a_statement_gives_the_same_as_a_string() -> None:
    assert cluster_of("h100", {"nodes": 2, "devices": 8}).nodes == parse_cluster("16xH100").nodes
    assert cluster_of("h100", {"tflops": 500}).nodes[0].device.flops == 5e14
    assert cluster_of("local", {"devices": 2}).devices == 2


# ---------------------------------------------------------------- slices and this machine


def test_a_slice_says_how_many_devices_share_a_node() -> None:
    cluster = parse_cluster("4x8xH100")
    device = PRESETS["h100"]
    assert cluster.slice() == Slice(device, 32, 8)
    assert cluster.slice(4) == Slice(device, 4, 4)
    assert cluster.slice(8, 4) == Slice(device, 8, 4)
    assert cluster.slice(12) == Slice(device, 12, 8) and cluster.slice(12).nodes == 2
    with pytest.raises(ClusterError, match="devices 30 to 33 aren't in 4x8xH100: it has devices 0 to 31"):
        cluster.slice(4, 30)
    assert cluster.slice(12, 4) == Slice(device, 12, 4) and cluster.slice(12, 4).nodes == 3
    with pytest.raises(ClusterError, match="device 32 isn't in"):
        cluster.node_of(32)


def test_local_is_what_this_machine_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local_module, "GPUS", tmp_path)
    one, two = local_cluster(), local_cluster(2)
    assert one.devices == 1 and two.devices == 2
    assert one.memory == pytest.approx(two.memory) and one.memory == local_module.memory()
    assert one.nodes[0].device.flops == pytest.approx(2 * two.nodes[0].device.flops) or local_module.cores() == 1


def test_local_knows_the_gpus_the_driver_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / "gpus" / str(number)
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ: 5\n")
    monkeypatch.setattr(local_module, "GPUS", tmp_path / "gpus")
    assert local_cluster() == Cluster("local", (Node(PRESETS["a100_80"], 2),))
    with pytest.raises(ClusterError, match="this machine has 2 GPUs, not 3"):
        local_cluster(3)
