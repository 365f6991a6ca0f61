"""Placement decisions made by hand, with the numbers of a realistic one: what the pictures' tests draw."""

from shardflow.compiler.search.decision import (
    Alternative,
    Decision,
    Kind,
    Layout,
    Memory,
    Operator,
    Phase,
    Slot,
    Transfer,
)

GB = 1e9
USABLE = 74 * GB

SECONDS: dict[Kind, dict[str, float]] = {
    "train": {"compute": 0.78, "all-reduce": 0.13, "pipeline bubble": 0.05, "optimizer": 0.04},
    "forward": {"compute": 0.9, "all-reduce": 0.1},
    "generate": {"decode: weights and cache": 0.72, "prefill": 0.11, "longest responses": 0.17},
}
"""Fractions of a phase's seconds."""

LASTING: dict[Kind, dict[str, float]] = {
    "train": {"weights": 2, "gradients": 2, "optimizer": 12},
    "forward": {"weights": 2},
    "generate": {"weights": 2},
}
"""Bytes per parameter."""

PASSING: dict[Kind, dict[str, float]] = {
    "train": {"activations": 11 * GB, "logits": 2.1 * GB},
    "forward": {"activations": 3.4 * GB},
    "generate": {"kv cache": 28 * GB},
}


def _h100s(name: str, first: int, devices: int, nodes: int) -> Slot:
    return Slot(name, first, devices, nodes, "h100", USABLE)


def phase(
    name: str,
    kind: Kind,
    slot: str,
    layout: Layout,
    span: tuple[float, float],
    after: tuple[str, ...] = (),
    *,
    billions: float = 32,
    runs: tuple[str, ...] = (),
    ahead: int = 0,
    tokens: int = 1_048_576,
) -> Phase:
    """A phase with seconds and bytes that go with its kind."""
    start, end = span
    copies = layout.dp if kind != "train" else 1
    held = {k: billions * 1e9 * b * copies / layout.devices for k, b in LASTING[kind].items()}
    return Phase(
        name,
        name.split(".")[0],
        kind,
        slot,
        layout,
        end - start,
        {part: fraction * (end - start) for part, fraction in SECONDS[kind].items()},
        Memory(held, PASSING[kind]),
        start,
        end,
        after,
        runs or (name.split(".")[0],),
        ahead,
        1024,
        tokens,
    )


def rows(source: str, target: str, after: str, before: str, at: float, megabytes: float) -> Transfer:
    seconds = 0.02 + megabytes / 4000
    return Transfer("rows", "", source, target, megabytes * 1e6, seconds, at, at + seconds, before, (after,))


LARGE = Layout(tp=4, fsdp=8, recompute=True, micro=8192)


def ppo(staleness: int = 0) -> Decision:
    """PPO of a 32B policy, critic and reward model of 7B, on 64 devices: sampling and training share devices, or,
    with staleness 1, stand apart and run at the same time."""
    return _ppo_apart() if staleness else _ppo_shared()


def _decision(flow: str, devices: int, period: float, staleness: int = 0, **parts: object) -> Decision:
    fields = {
        "flow": flow,
        "cluster": f"{devices // 8}x8xH100",
        "devices": devices,
        "operators": (),
        "transfers": (),
        "period": period,
        "makespan": period * (1 + staleness),
        "staleness": staleness,
        "bound": period * 0.958,
        "gap": 0.042,
        "optimal": True,
        "space": ("tensor parallel 1 to 8 within a node", "slots of whole nodes", "pipelines of 1, 2 or 4 stages"),
        "alternatives": (Alternative("one slot for all phases", period * 1.31, 0.31),),
        "assumptions": ("prompts have 512 tokens", "responses have half of their limit on average, the longest all"),
        **parts,
    }
    return Decision(**fields)  # type: ignore[arg-type]


OPERATORS = (
    Operator("reward", "rewards.blend", "ranks0-31", ("scorer.score", "policy.generate")),
    Operator("adv", "std.scan.gae", "ranks32-47", ("critic.values", "ref.logprobs", "reward")),
)


def _ppo_shared() -> Decision:
    actor, critic, judge = "ranks0-31", "ranks32-47", "ranks48-63"
    phases = (
        phase(
            "policy.generate",
            "generate",
            actor,
            Layout(tp=4, dp=8, sleeps=True),
            (2.6, 30.1),
            runs=("rollout",),
        ),
        phase("ref.logprobs", "forward", judge, Layout(tp=4, dp=4), (30.2, 37.9), ("policy.generate",)),
        phase("scorer.score", "forward", judge, Layout(tp=1, dp=16), (37.9, 40.0), ("policy.generate",), billions=7),
        phase(
            "critic.values",
            "forward",
            critic,
            Layout(tp=2, fsdp=8, micro=16384),
            (30.2, 32.4),
            ("policy.generate",),
            billions=7,
            runs=("values",),
        ),
        phase(
            "critic.update",
            "train",
            critic,
            Layout(tp=2, fsdp=8, micro=16384),
            (40.1, 53.6),
            ("critic.values", "ref.logprobs", "scorer.score"),
            billions=7,
            tokens=2_097_152,
        ),
        phase(
            "policy.update",
            "train",
            actor,
            LARGE,
            (41.4, 71.9),
            ("critic.values", "ref.logprobs", "scorer.score"),
            tokens=2_097_152,
        ),
    )
    transfers = (
        Transfer("weights", "policy", actor, actor, 12 * GB, 0.9, 0.8, 1.7, "policy.generate", ("policy.update",)),
        Transfer("wake", "policy", "host", actor, 16 * GB, 0.8, 0.0, 0.8, "policy.generate", ("policy.update",)),
        Transfer("sleep", "policy", actor, "host", 16 * GB, 0.5, 30.1, 30.6, "policy.update", ("policy.generate",)),
        Transfer("reload", "policy", "host", actor, 12 * GB, 0.7, 40.6, 41.3, "policy.update", ("policy.generate",)),
        Transfer("offload", "policy", actor, "host", 12 * GB, 0.6, 71.9, 72.5, "policy.generate", ("policy.update",)),
        rows(actor, judge, "policy.generate", "ref.logprobs", 30.1, 25.2),
        rows(actor, critic, "policy.generate", "critic.values", 30.1, 25.2),
        rows(judge, actor, "ref.logprobs", "policy.update", 37.9, 4.2),
        rows(judge, critic, "ref.logprobs", "critic.update", 37.9, 4.2),
        rows(critic, actor, "critic.values", "policy.update", 32.4, 8.4),
    )
    slots = (_h100s(actor, 0, 32, 4), _h100s(critic, 32, 16, 2), _h100s(judge, 48, 16, 2))
    return _decision("ppo", 64, 72.5, slots=slots, phases=phases, transfers=transfers, operators=OPERATORS)


def _ppo_apart() -> Decision:
    sampler, trainer, critic = "ranks0-23", "ranks24-55", "ranks56-63"
    phases = (
        phase("policy.generate", "generate", sampler, Layout(tp=4, dp=6), (1.0, 38.2), runs=("rollout",), ahead=1),
        phase("ref.logprobs", "forward", trainer, Layout(tp=4, dp=8), (0.0, 3.9)),
        phase("scorer.score", "forward", critic, Layout(dp=8), (0.0, 4.1), billions=7),
        phase("critic.values", "forward", critic, Layout(fsdp=8, micro=16384), (4.1, 8.4), billions=7),
        phase(
            "critic.update",
            "train",
            critic,
            Layout(fsdp=8, micro=16384),
            (8.5, 35.3),
            ("critic.values", "ref.logprobs", "scorer.score"),
            billions=7,
        ),
        phase("policy.update", "train", trainer, LARGE, (8.5, 38.4), ("critic.values", "ref.logprobs", "scorer.score")),
    )
    transfers = (
        Transfer(
            "weights", "policy", trainer, sampler, 16 * GB, 0.6, 38.4, 39.0, "policy.generate", ("policy.update",)
        ),
        rows(sampler, trainer, "policy.generate", "ref.logprobs", 38.2, 25.2),
        rows(sampler, critic, "policy.generate", "critic.values", 38.3, 25.2),
        rows(sampler, critic, "policy.generate", "scorer.score", 38.3, 25.2),
        rows(trainer, critic, "ref.logprobs", "critic.update", 3.9, 4.2),
        rows(critic, trainer, "critic.values", "policy.update", 8.4, 8.4),
    )
    operators = (
        Operator("reward", "rewards.blend", "controller", ("scorer.score", "policy.generate")),
        Operator("adv", "std.scan.gae", critic, ("critic.values", "ref.logprobs", "reward")),
    )
    slots = (_h100s(sampler, 0, 24, 3), _h100s(trainer, 24, 32, 4), _h100s(critic, 56, 8, 1))
    parts = {"slots": slots, "phases": phases, "transfers": transfers, "operators": operators}
    return _decision("async_ppo", 64, 39.0, 1, **parts)


def grpo() -> Decision:
    """GRPO of a 7B policy on 16 devices, all phases on all of them in turn."""
    every = "ranks0-15"
    phases = (
        phase("policy.generate", "generate", every, Layout(tp=2, dp=8, sleeps=True), (0.7, 14.9), billions=7),
        phase("ref.logprobs", "forward", every, Layout(fsdp=16), (15.2, 18.0), ("policy.generate",), billions=7),
        phase(
            "policy.update",
            "train",
            every,
            Layout(fsdp=16, recompute=True, micro=16384),
            (18.0, 30.2),
            ("ref.logprobs",),
            billions=7,
        ),
    )
    transfers = (
        Transfer("weights", "policy", every, every, 6.1 * GB, 0.4, 0.3, 0.7, "policy.generate", ("policy.update",)),
        Transfer("wake", "policy", "host", every, 7 * GB, 0.3, 0.0, 0.3, "policy.generate", ("policy.update",)),
        Transfer("sleep", "policy", every, "host", 7 * GB, 0.3, 14.9, 15.2, "ref.logprobs", ("policy.generate",)),
    )
    operators = (Operator("reward", "rewards.exact_match", every, ("policy.generate",)),)
    slots = (_h100s(every, 0, 16, 2),)
    return _decision("grpo", 16, 30.2, slots=slots, phases=phases, transfers=transfers, operators=operators)


def async_grpo() -> Decision:
    """GRPO with staleness 1 on 16 devices: half of them sample while the others train."""
    sampler, trainer = "ranks0-7", "ranks8-15"
    phases = (
        phase("policy.generate", "generate", sampler, Layout(tp=1, dp=8), (0.5, 20.3), billions=7, ahead=1),
        phase("policy.logprobs", "forward", trainer, Layout(fsdp=8, micro=16384), (0.0, 3.1), billions=7),
        phase(
            "policy.update",
            "train",
            trainer,
            Layout(fsdp=8, micro=16384),
            (3.1, 20.0),
            ("policy.logprobs",),
            billions=7,
        ),
    )
    transfers = (
        Transfer(
            "weights", "policy", trainer, sampler, 14 * GB, 0.5, 20.3, 20.8, "policy.generate", ("policy.update",)
        ),
        rows(sampler, trainer, "policy.generate", "policy.logprobs", 20.3, 12.6),
    )
    operators = (Operator("reward", "rewards.exact_match", "controller", ("policy.generate",)),)
    slots = (_h100s(sampler, 0, 8, 1), _h100s(trainer, 8, 8, 1))
    parts = {"slots": slots, "phases": phases, "transfers": transfers, "operators": operators}
    return _decision("async_grpo", 16, 20.8, 1, **parts)


DECISIONS = {"ppo": ppo, "async_ppo": lambda: ppo(1), "grpo": grpo, "async_grpo": async_grpo}
