"""The loop over steps: what runs ahead, the step itself, its record, commits, and what a run leaves behind."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...compiler.plan import Instruction
from ..commits import CommitStore
from ..models.loading import save_role
from ..telemetry import Telemetry
from ..values import Any_, Record, Value
from . import calls, phases, regions, updates  # their handlers
from .interpreter import Env, Step, run_block
from .regions import runs_after_the_end
from .session import Session
from .state import Queues, pack_state

SAMPLES_PER_STEP = 4


@dataclass
class Run:
    """One run of a plan, from `first` to `session.steps`."""

    session: Session
    out: Path
    telemetry: Telemetry
    store: CommitStore
    save_every: int
    first: int = 0
    queues: Queues = field(default_factory=dict)

    def execute(self) -> None:
        """Run all steps, the blocks that run once more at the end, and write the trained models."""
        for number in range(self.first, self.session.steps):
            started = time.perf_counter()
            step = Step(number)
            values = self._step(step)
            self._report(step, values, time.perf_counter() - started)
            self._commit(number + 1)
        self._after_the_end()
        self._save_models()

    # ------------------------------------------------------------ one step

    def _step(self, step: Step) -> dict[str, Any_]:
        env = Env(self.session, step)
        for queued in self._run_ahead(step.number):
            env.values.update(queued)
        run_block(self.session.plan.program, env)
        self.session.states.update(step.next_states)
        return env.values

    def _run_ahead(self, number: int) -> Iterator[dict[str, Any_]]:
        """Make what later steps will read, with the weights of now, and hand out what this step reads.

        At version v the draw of step v + k is made; at version 0 those of steps 0 to k are.
        """
        for ahead in self.session.plan.ahead:
            queue = self.queues.setdefault(ahead.staleness, {})
            last = min(number + ahead.staleness, self.session.steps - 1)
            for future in range(max(queue, default=number - 1) + 1, last + 1):
                queue[future] = self._produce(ahead.program, future, ahead.keeps)
            yield queue.pop(number)

    def _produce(self, program: Sequence[Instruction], number: int, keeps: Sequence[str]) -> dict[str, Any_]:
        env = Env(self.session, Step(number))
        run_block(program, env)
        return {name: env.values[name] for name in keeps}

    # ------------------------------------------------------------ records

    def _report(self, step: Step, values: dict[str, Any_], seconds: float) -> None:
        metrics = step.means()
        rollouts = [v for v in values.values() if isinstance(v, Record) and v.kind == "rollout"]
        record: dict[str, Any] = {"step": step.number, "seconds": seconds}
        record |= {k: metrics.pop(k) for k in ("reward", "kl") if k in metrics}
        record |= {k: v for k, v in metrics.items() if k.startswith("loss.")}
        if rollouts:
            record |= _lengths(rollouts[0])
        tokens = (
            step.generated_tokens or sum(int(r.fields["length"].tensor.sum()) for r in rollouts) or step.trained_tokens
        )
        record["tokens_per_second"] = tokens / seconds
        record |= {k: v for k, v in metrics.items() if k not in record}
        record |= self.session.counters.drain()
        self.telemetry.step(record)
        if rollouts:
            self.telemetry.samples(step.number, sample_rows(rollouts[0], values))

    # ------------------------------------------------------------ ends

    def _commit(self, done: int) -> None:
        if done % self.save_every and done != self.session.steps:
            return
        tensors, meta = pack_state(self.session, done, self.queues)
        self.store.save(done, tensors, meta, self.telemetry.log_files())

    def _after_the_end(self) -> None:
        """`every` blocks once more, with the final weights."""
        last = [i for i in self.session.plan.program if runs_after_the_end(i)]
        if not last or not self.session.steps:
            return
        step, started = Step(self.session.steps), time.perf_counter()
        env = Env(self.session, step)
        for block in last:
            run_block(_needed(self.session.plan.program, block), env)
            run_block(block.body, env.inner())
        if step.logged:
            record = {"step": step.number, "seconds": time.perf_counter() - started, **step.means()}
            self.telemetry.step(record)

    def _save_models(self) -> None:
        for name in self.session.trainers:
            save_role(self.session.roles[name], self.out / "models" / name)


def _needed(program: Sequence[Instruction], block: Instruction) -> list[Instruction]:
    """The instructions of the step that a block reads from."""
    from ...compiler.plan import Value as Name

    wanted = {a.ref for x in block.walk() for a in x.args.values() if isinstance(a, Name)}
    out: list[Instruction] = []
    for instruction in reversed(program):
        if instruction.out in wanted and instruction is not block:
            wanted |= {a.ref for x in instruction.walk() for a in x.args.values() if isinstance(a, Name)}
            out.append(instruction)
    return out[::-1]


def _lengths(rollout: Record) -> dict[str, float]:
    lengths = rollout.fields["length"].tensor.double()
    if not len(lengths):
        return {}
    cut = rollout.fields["truncated"].tensor.double()
    return {"length": float(lengths.mean()), "length_max": float(lengths.max()), "truncated": float(cut.mean())}


def sample_rows(rollout: Record, values: dict[str, Any_]) -> list[dict[str, Any]]:
    """A few rollouts as a person reads them: prompt, text, and every named value per sample."""
    count = min(SAMPLES_PER_STEP, rollout.frame.size)
    columns: dict[str, list[Any]] = {
        "prompt": rollout.hidden["prompt"].rows[:count],
        "text": rollout.fields["text"].rows[:count],
    }
    for name, value in values.items():
        if isinstance(value, Value) and value.frame is not None and "%" not in name and "/" not in name:
            if rollout.frame.is_under(value.frame) and isinstance(value.data, torch.Tensor):
                columns[name] = value.on(rollout.frame).rows[:count]
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


__all__ = ["Run", "calls", "phases", "updates", "regions"]
