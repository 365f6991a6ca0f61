"""The loop over steps: what runs ahead, the step itself, its record, commits, and what a run leaves behind.

Every rank of a run goes through the same loop; the first one writes what all of them have to say of a step.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..commits import CommitStore
from ..models.loading import save_role
from ..telemetry import Telemetry
from ..values import Any_
from . import calls, collectives, phases, regions, updates  # their handlers
from .ahead import Queues, exchange, names_ahead, run_ahead
from .closing import needed
from .interpreter import Env, Step, run_block
from .records import report_of, reports_of_all, sample_rows, step_means, step_record
from .regions import runs_after_the_end
from .session import Session
from .state import pack_state
from .stopping import Stopped


def _never() -> bool:
    return False


@dataclass
class Run:
    """One run of a plan, from `first` to `session.steps`, as one rank of it.

    telemetry: on the first rank alone. stopping: whether somebody asked this rank to end early.
    """

    session: Session
    out: Path
    telemetry: Telemetry | None
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
            is_stopping = self._report(step, values, time.perf_counter() - started)
            self._commit(number + 1, is_stopping)
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
        exchange(self.session, self.queues)
        self.session.states.update(step.next_states)
        self.session.snapshots.clear()
        return env.values

    def _report(self, step: Step, values: dict[str, Any_], seconds: float) -> bool:
        """Record the step. Returns whether some rank was asked to end early."""
        own = report_of(self.session, step, values, self.stopping())
        reports = reports_of_all(self.session.world.channel("world"), own, f"the end of step {step.number}")
        if self.telemetry is not None:
            self.telemetry.step(step_record(step.number, reports, seconds, self.session.whole))
            self.telemetry.samples(step.number, sample_rows(reports))
        return any(r.is_stopping for r in reports)

    # ------------------------------------------------------------ ends

    def _commit(self, done: int, is_stopping: bool = False) -> None:
        """Commit where it is time to, at the end, and before stopping early."""
        stops = done < self.session.steps and is_stopping
        if done % self.save_every and done != self.session.steps and not stops:
            return
        self.session.world.place = f"the commit of step {done}"
        tensors, meta = pack_state(self.session, done, self.queues)
        self.store.save(done, tensors, meta, self.telemetry.log_files() if self.telemetry is not None else ())
        if stops:
            raise Stopped(done)

    def _after_the_end(self) -> None:
        """`every` blocks once more, with the final weights."""
        last = [i for i in self.session.whole.program if runs_after_the_end(i)]
        if not last or not self.session.steps:
            return
        step, started = Step(self.session.steps), time.perf_counter()
        env = Env(self.session, step)
        wanted = needed(self.session.whole, last)
        if any(name in names_ahead(self.session) for name in wanted):
            for drawn in run_ahead(self.session, self.queues, step.number, closing=True):
                env.values.update(drawn.values)
        program = self.session.plan.program
        run_block((i for i in program if wanted & {i.out, *i.outs} and i not in last), env)
        step.logged.clear()  # of the step only the blocks count: it isn't one
        for block in (i for i in program if runs_after_the_end(i)):
            run_block(block.body, env.inner())
        reports = reports_of_all(
            self.session.world.channel("world"), report_of(self.session, step, {}, False), "the end of the run"
        )
        means = step_means(reports)
        if means and self.telemetry is not None:
            self.telemetry.step({"step": step.number, "seconds": time.perf_counter() - started, **means})

    def _save_models(self) -> None:
        for name in dict.fromkeys(u.attrs["model"] for u in self.session.whole.walk() if u.op == "update"):
            if name in self.session.roles:
                save_role(self.session.roles[name], self.out / "models" / name)


__all__ = ["Run", "calls", "collectives", "phases", "updates", "regions"]
