"""`flowrun --profile`: how long updates and draws really take, as rows that `flowc calibrate` reads.

Each rank times the phases that it takes part in; at the end the first one writes `profile.json`: one row per phase, the
median of its steps. The first step, which loads kernels and fills caches, counts only if there is no other.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from ...compiler.plan import Instruction
from ...compiler.plan import Value as Name
from ..models.loading import Role
from ..ranks.world import World
from ..values import Any_, Record

if TYPE_CHECKING:
    from ..execution.interpreter import Env

FILE = "profile.json"
SOURCE = "flowrun --profile"
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
"""The names that the cost model gives to dtypes. It knows no float64."""

UNGATED = ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "phi", "falcon", "starcoder2")
"""Model types whose MLP has two matrices. Others have a gate, which makes three."""

Handler = Callable[[Instruction, "Env"], Any_ | None]


class Measured(msgspec.Struct, frozen=True):
    """A phase in one step, as one rank saw it.

    sequences: of this rank; of an update, of one epoch. prompt, response: their tokens in all. steps: of the optimizer.
    said: what a row says of how it ran, whatever the step.
    """

    phase: str
    kind: str
    step: int
    seconds: float
    sequences: int
    prompt: int
    response: int
    steps: int
    epochs: int
    said: dict[str, Any]


class Profile:
    """The stopwatch of a run. It waits for the device before and after each phase, so a run is a little slower."""

    def __init__(self) -> None:
        self.found: list[Measured] = []

    def timed(self, handler: Handler, i: Instruction, env: "Env") -> Any_ | None:
        """Execute an instruction, and note how long it took if it is an update or a draw."""
        if i.op not in ("update", "generate") or env.step.skip_updates:
            return handler(i, env)
        before = _steps(i, env)
        _wait(env)
        started = time.perf_counter()
        result = handler(i, env)
        _wait(env)
        seconds = time.perf_counter() - started
        records = [result] if isinstance(result, Record) else _read(i, env)
        steps = _steps(i, env) - before
        if records and (steps or i.op == "generate"):
            self.found.append(_measured(i, env, seconds, records, steps))
        return result

    def write(self, world: World, flow: str, out: Path) -> None:
        """Bring together what all ranks have measured; the first one writes it. All ranks call it."""
        told = world.channel("world").collect(msgspec.msgpack.encode(self.found), "the profile of the run")
        if world.rank == 0:
            ranks = [msgspec.msgpack.decode(data, type=list[Measured]) for data in told]
            rows = list(rows_of(flow, ranks))
            (out / FILE).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


# ---------------------------------------------------------------- one phase


def _wait(env: "Env") -> None:
    if env.session.settings.device.startswith("cuda"):
        torch.cuda.synchronize()


def _steps(i: Instruction, env: "Env") -> int:
    """Optimizer steps of an update's model so far."""
    return env.session.trainers[i.attrs["model"]].count if i.op == "update" else 0


def _read(i: Instruction, env: "Env") -> list[Record]:
    """What an update trains on, as far as it comes from outside of it."""
    live = (x.args["sequences"] for x in i.body if x.attrs.get("version") == "live" and "sequences" in x.args)
    names = dict.fromkeys(a.ref for a in live if isinstance(a, Name) and env.has(a.ref))
    return [found for name in names if isinstance(found := env[name], Record)]


def _measured(i: Instruction, env: "Env", seconds: float, records: Sequence[Record], steps: int) -> Measured:
    context = sum(len(row) for r in records for row in r.hidden["context"].rows)
    response = sum(len(row) for r in records for row in r.hidden["response"].rows)
    draw = "" if i.op == "update" else f" of {i.out.partition('@')[0]}"
    return Measured(
        f"{i.attrs['model']}.{i.op}{draw}",
        "train" if i.op == "update" else "generate",
        env.step.number,
        seconds,
        sum(r.frame.size for r in records),
        context,
        response,
        steps,
        int(i.attrs.get("epochs", 1)),
        _said(i, env),
    )


def _said(i: Instruction, env: "Env") -> dict[str, Any]:
    """What a row says of the model, the devices and the layout."""
    session = env.session
    holding = str(i.attrs.get("holding", i.attrs["model"]))
    role = session.roles[holding]
    held = next((h for h in session.whole.holdings if h.name == holding), None)
    devices = len(session.whole.ranks_of(i.mesh))
    dtype = session.dtype_of(i.attrs["model"])
    said: dict[str, Any] = {"model": _model(role), "device": _device(session.settings.device), "devices": devices}
    said |= {"dtype": DTYPES.get(dtype, str(dtype))}
    if i.op == "update":
        said["parallel"] = {"dp": held.dp, "fsdp": held.fsdp} if held else {"dp": 1}
        said |= {"recompute": "full" if i.attrs.get("checkpointing") else "none"}
        said |= {"compiled": bool(i.attrs.get("compile") or session.settings.compile)}
        said |= {"micro": session.settings.micro or i.attrs["micro"]}
    return said


def _model(role: Role) -> str | dict[str, Any]:
    """The sizes of a model as a row says them; of a mixture of experts its path, which must be a known name."""
    config = role.config
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        return role.path
    heads = config.num_attention_heads
    return {
        "hidden": config.hidden_size,
        "layers": config.num_hidden_layers,
        "heads": heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "ffn": getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * config.hidden_size,
        "vocab": config.vocab_size,
        "gated": config.model_type not in UNGATED,
        "tied": bool(getattr(config, "tie_word_embeddings", False)),
    }


def _device(name: str) -> str:
    """The device as the cost model's presets are called."""
    if not name.startswith("cuda"):
        return name
    words = torch.cuda.get_device_name(name).replace("-", " ").split()
    return " ".join(w for w in words if w.upper() not in ("NVIDIA", "HBM3", "HBM3E", "PCIE"))


# ---------------------------------------------------------------- rows


def rows_of(flow: str, ranks: Iterable[Iterable[Measured]]) -> Iterator[dict[str, Any]]:
    """One row per phase: of each step the slowest rank's seconds and all ranks' tokens; of the steps the median."""
    steps: dict[str, dict[int, list[Measured]]] = {}
    for found in ranks:
        for m in _of_steps(found):
            steps.setdefault(m.phase, {}).setdefault(m.step, []).append(m)
    for phase, by_step in sorted(steps.items()):
        order = [by_step[n] for n in sorted(by_step)]
        yield _row(f"{flow} {phase}", [_sum(parts, max(m.seconds for m in parts)) for parts in order[1:] or order])


def _of_steps(found: Iterable[Measured]) -> list[Measured]:
    """What one rank has measured by phase and step: the rounds of a `collect` count as one."""
    rounds: dict[tuple[str, int], list[Measured]] = {}
    for m in found:
        rounds.setdefault((m.phase, m.step), []).append(m)
    return [_sum(parts, sum(m.seconds for m in parts)) for parts in rounds.values()]


def _sum(parts: Sequence[Measured], seconds: float) -> Measured:
    return msgspec.structs.replace(
        parts[0],
        seconds=seconds,
        sequences=sum(m.sequences for m in parts),
        prompt=sum(m.prompt for m in parts),
        response=sum(m.response for m in parts),
    )


def _row(name: str, steps: Sequence[Measured]) -> dict[str, Any]:
    said = dict(steps[0].said)
    micro = said.pop("micro", 0)
    row = {"id": name, "phase": steps[0].kind, **said}
    row |= _trained(steps, micro) if steps[0].kind == "train" else _sampled(steps)
    return {**row, "source": f"{SOURCE}, median of {len(steps)} step{'s' if len(steps) > 1 else ''}"}


def _trained(steps: Sequence[Measured], micro: int) -> dict[str, Any]:
    """Of an optimizer step: its sequences, all as long as they are in the mean."""
    sequence = max(1, round(_mean(steps, lambda m: m.prompt + m.response)))
    batch = max(1, round(median(m.sequences * m.epochs / m.steps for m in steps)))
    data = 1
    for degree in steps[0].said["parallel"].values():
        data *= degree
    return {
        "sequence": sequence,
        "micro_batch": min(max(1, micro // sequence), max(1, batch // data)),
        "global_batch": batch,
        "measured": {"step_seconds": median(m.seconds / m.steps for m in steps)},
    }


def _sampled(steps: Sequence[Measured]) -> dict[str, Any]:
    return {
        "prompt": max(1, round(_mean(steps, lambda m: m.prompt))),
        "response": max(1, round(_mean(steps, lambda m: m.response))),
        "batch": max(1, round(median(m.sequences for m in steps))),
        "measured": {"output_tokens_per_second": median(m.response / m.seconds for m in steps)},
    }


def _mean(steps: Sequence[Measured], tokens: Callable[[Measured], int]) -> float:
    """Tokens of a sequence in the mean over all steps."""
    return sum(tokens(m) for m in steps) / max(1, sum(m.sequences for m in steps))
