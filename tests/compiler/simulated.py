"""Hand-made decisions to simulate: PPO on one slot and split in two, GRPO split, and any staleness. And how."""

from shardflow.compiler.cluster import parse_cluster
from shardflow.compiler.cost import Generate, Lengths
from shardflow.compiler.cost import Layout as Split
from shardflow.compiler.search.decision import Decision, Layout, Memory, Operator, Phase, Slot, Transfer
from shardflow.compiler.search.decision import Kind as PhaseKind
from shardflow.compiler.shapes import KNOWN
from shardflow.compiler.simulation import Durations, Options, Replicas, Result, Simulation

GIB = 2.0**30


def phase(
    name: str,
    kind: PhaseKind,
    slot: str,
    start: float,
    seconds: float,
    after: tuple[str, ...] = (),
    ahead: int = 0,
    layout: Layout | None = None,
) -> Phase:
    """A phase that takes `seconds`; a tenth of them are launches. Each of its devices holds 10 GiB and 5 GiB more."""
    return Phase(
        name,
        name.partition(".")[0],
        kind,
        slot,
        layout or Layout(tp=2, dp=4),
        seconds,
        {"compute": 0.9 * seconds, "launch": 0.1 * seconds},
        Memory({"weights": 10 * GIB}, {"activations": 5 * GIB}),
        start,
        start + seconds,
        after,
        (name,),
        ahead,
        samples=512,
        tokens=512 * 1024,
    )


def weights(source: str, target: str, start: float, seconds: float, model: str = "policy") -> Transfer:
    """New weights of a model on their way to its engine."""
    update, generate = f"{model}.update", f"{model}.generate"
    end = start + seconds
    return Transfer("weights", model, source, target, GIB, seconds, start, end, before=generate, after=(update,))


def decision(
    phases: tuple[Phase, ...],
    transfers: tuple[Transfer, ...],
    period: float,
    makespan: float,
    staleness: int = 0,
    operators: tuple[Operator, ...] = (),
    flow: str = "ppo",
) -> Decision:
    names = sorted({x.slot for x in phases})
    slots = tuple(Slot(n, 8 * i, 8, 1, "h100", 76e9) for i, n in enumerate(names))
    return Decision(
        flow,
        f"{len(slots)}x8xH100",
        8 * len(slots),
        slots,
        phases,
        operators,
        transfers,
        period,
        makespan,
        staleness,
        period,
        0.0,
        True,
        (),
    )


def ppo() -> Decision:
    """PPO without staleness, all on one slot but the critic, which trains beside the policy; weights move first."""
    phases = (
        phase("policy.generate", "generate", "a", 1.0, 20.0),
        phase("ref.logprobs", "forward", "a", 21.0, 3.0, ("policy.generate",)),
        phase("critic.values", "forward", "b", 21.0, 4.0, ("policy.generate",)),
        phase("policy.update", "train", "a", 25.0, 12.0, ("ref.logprobs", "adv")),
        phase("critic.update", "train", "b", 25.0, 9.0, ("critic.values", "adv")),
    )
    reward = Operator("reward", "rewards.exact_match", "a", ("policy.generate",))
    advantage = Operator("adv", "std.gae", "b", ("reward", "critic.values"))
    return decision(phases, (weights("a", "a", 0.0, 1.0),), 37.0, 37.0, operators=(reward, advantage))


def split(
    staleness: int, generate: float = 20.0, train: float = 12.0, score: float = 3.0, move: float = 1.0
) -> Decision:
    """GRPO: rollouts on one slot, scoring and training on the other; new weights occupy both."""
    draw, ref, update = (generate, score, train)
    if staleness == 0:
        begin = (move, move + draw, move + draw + ref)
        period, makespan, moved = move + draw + ref + update, move + draw + ref + update, 0.0
    else:
        begin = (0.0, 0.0, ref)
        moved = max(draw, ref + update)
        period = moved + move
        makespan = staleness * period + ref + update
    after = ("policy.generate",) if staleness == 0 else ()
    phases = (
        phase("policy.generate", "generate", "rollout", begin[0], draw, ahead=staleness),
        phase("ref.logprobs", "forward", "train", begin[1], ref, after),
        phase("policy.update", "train", "train", begin[2], update, ("ref.logprobs",)),
    )
    transfers = (weights("train", "rollout", moved, move),)
    return decision(phases, transfers, period, makespan, staleness, flow="grpo")


def simulated(made: Decision, durations: Durations | None = None, **options: float | bool | None) -> Result:
    asked = Options(**options)  # type: ignore[arg-type]
    return Simulation(made, asked, durations or Durations()).run()


def engines(
    spread: float = 0.8, devices: int = 64, sequences: int = 2048, maximum: int = 4096, slots: int = 1024
) -> Replicas:
    """Llama-3.1-8B with tp=2, and responses of 512 tokens in the mean."""
    lengths = Lengths.fixed(512) if spread == 0 else Lengths(512, maximum, spread)
    work = Generate(sequences, 256, lengths, shared=8, slots=slots)
    part = parse_cluster(f"{devices}xH100").slice()
    return Replicas(KNOWN["llama-3.1-8b"], work, Split(tp=2, dp=devices // 2), part)
