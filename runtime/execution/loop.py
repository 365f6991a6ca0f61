"""The loop over steps: what runs ahead, the step itself, its record, commits, and what a run leaves behind."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...compiler.plan import Instruction
from ...compiler.plan import Value as Name
from ..commits import CommitStore
from ..models.loading import save_role
from ..telemetry import Telemetry
from ..values import Any_
from . import calls, phases, regions, updates  # their handlers
from .ahead import Queues, names_ahead, run_ahead
from .interpreter import Env, Step, run_block
from .records import rollouts_of, sample_rows, step_record
from .regions import runs_after_the_end
from .session import Session
from .state import pack_state
from .stopping import Stopped


def _never() -> bool:
    return False


@dataclass
class Run:
    """One run of a plan, from `first` to `session.steps`. stopping: whether somebody asked it to end early."""

    session: Session
    out: Path
    telemetry: Telemetry
    store: CommitStore
    save_every: int
    first: int = 0
    queues: Queues = field(default_factory=dict)
    stopping: Callable[[], bool] = _never

    def execute(self) -> None:
        """Run all steps, write the trained models, and run the blocks that run once more at the end.

        Raises Stopped, after a commit, if it was asked to end early.
        """
        for number in range(self.first, self.session.steps):
            if self._is_out_of_data(number):
                self.session.steps = number
                self._commit(number)
                break
            started = time.perf_counter()
            step = Step(number)
            values = self._step(step)
            self._report(step, values, time.perf_counter() - started)
            self._commit(number + 1)
        self._save_models()
        self._after_the_end()

    def _is_out_of_data(self, number: int) -> bool:
        drawn = bool(self.queues) and all(number in queue for queue in self.queues.values())
        return self.session.is_exhausted() and not drawn

    # ------------------------------------------------------------ one step

    def _step(self, step: Step) -> dict[str, Any_]:
        env = Env(self.session, step)
        for drawn in run_ahead(self.session, self.queues, step.number):
            env.values.update(drawn.values)
            step.take_over(drawn.logged, drawn.skip_updates)
        run_block(self.session.plan.program, env)
        self.session.states.update(step.next_states)
        self.session.snapshots.clear()
        return env.values

    def _report(self, step: Step, values: dict[str, Any_], seconds: float) -> None:
        self.telemetry.step(step_record(step, values, seconds) | self.session.counters.drain())
        rollouts = rollouts_of(values)
        if rollouts:
            self.telemetry.samples(step.number, sample_rows(rollouts[0], values, self.session.plan))

    # ------------------------------------------------------------ ends

    def _commit(self, done: int) -> None:
        """Commit where it is time to, at the end, and before stopping early."""
        stops = done < self.session.steps and self.stopping()
        if done % self.save_every and done != self.session.steps and not stops:
            return
        tensors, meta = pack_state(self.session, done, self.queues)
        self.store.save(done, tensors, meta, self.telemetry.log_files())
        if stops:
            raise Stopped(done)

    def _after_the_end(self) -> None:
        """`every` blocks once more, with the final weights."""
        last = [i for i in self.session.plan.program if runs_after_the_end(i)]
        if not last or not self.session.steps:
            return
        step, started = Step(self.session.steps), time.perf_counter()
        env = Env(self.session, step)
        needed = _needed(self.session.plan.program, last)
        if any(name in names_ahead(self.session) for name in needed):
            for drawn in run_ahead(self.session, self.queues, step.number, closing=True):
                env.values.update(drawn.values)
        run_block((i for i in self.session.plan.program if i.out in needed and i not in last), env)
        step.logged.clear()  # of the step only the blocks count: it isn't one
        for block in last:
            run_block(block.body, env.inner())
        if step.logged:
            self.telemetry.step({"step": step.number, "seconds": time.perf_counter() - started, **step.means()})

    def _save_models(self) -> None:
        for name in self.session.trainers:
            save_role(self.session.roles[name], self.out / "models" / name)


def _needed(program: Sequence[Instruction], blocks: Sequence[Instruction]) -> set[str]:
    """The names of the step's values, and regions, that some blocks read."""
    wanted = {name for block in blocks for name in _reads(block)}
    for instruction in reversed(program):
        if instruction.out in wanted:
            wanted |= _reads(instruction)
    return wanted


def _reads(block: Instruction) -> set[str]:
    regions = {str(x.attrs["region"]) for x in block.walk() if x.op == "collected"}
    return regions | {a.ref for x in block.walk() for a in x.args.values() if isinstance(a, Name)}


__all__ = ["Run", "calls", "phases", "updates", "regions"]
