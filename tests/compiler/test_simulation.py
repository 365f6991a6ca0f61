"""The simulator: its steps are the decision's, its order is legal, its tails and failures follow the formulas."""

import math
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardflow.compiler.cost import Lengths
from shardflow.compiler.cost.queue import profile_of
from shardflow.compiler.search.decision import Decision, Phase
from shardflow.compiler.simulation import (
    Durations,
    Options,
    Result,
    sampled,
)
from shardflow.compiler.simulation.events import Ran
from shardflow.compiler.simulation.scaling import rate_label, rate_ticks

from .simulated import decision, engines, phase, ppo, simulated, split, weights

EXACT = 1e-9


# ---------------------------------------------------------------- the decision's own times


@pytest.mark.parametrize("made", [ppo(), split(0), split(0, generate=5.25, train=1 / 3)], ids=["ppo", "grpo", "odd"])
def test_without_staleness_a_step_takes_what_the_decision_says(made: Decision) -> None:
    result = simulated(made, steps=7, drawn=False)
    for step in result.steps:
        assert step.seconds == pytest.approx(made.period, abs=EXACT)
        assert step.latency == pytest.approx(made.makespan, abs=EXACT)


def test_phases_of_the_first_step_start_and_end_as_decided() -> None:
    made = ppo()
    ran = {r.task.name: r for r in simulated(made, steps=1).ran}
    for x in made.phases:
        assert (ran[x.name].start, ran[x.name].end) == pytest.approx((x.start, x.end), abs=EXACT)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("generate", [20.0, 8.0])
@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_with_staleness_the_period_is_the_largest_load(staleness: int, generate: float, together: bool) -> None:
    result = simulated(split(staleness, generate), steps=40, together=together)
    load = max(generate, 3.0 + 12.0) + 1.0
    cycle = (generate + 3.0 + 12.0 + 1.0) / (staleness + 1)
    assert result.mean == pytest.approx(max(load, cycle), rel=1e-6)
    assert result.p95 == pytest.approx(result.mean, rel=1e-6)


def chained(staleness: int) -> Decision:
    """Three slots that wait for each other: the way round counts, no slot's load."""
    drawn = () if staleness else ("policy.generate",)
    phases = (
        phase("policy.generate", "generate", "a", 0.0, 10.0, ahead=staleness),
        phase("ref.logprobs", "forward", "b", 10.0, 10.0, drawn),
        phase("policy.update", "train", "c", 20.0, 10.0, ("ref.logprobs",)),
    )
    return decision(phases, (weights("c", "a", 30.0, 1.0),), 31.0, 30.0, staleness)


@pytest.mark.parametrize("staleness", [0, 1])
def test_where_no_slot_is_full_the_period_is_the_cycle_over_its_tokens(staleness: int) -> None:
    result = simulated(chained(staleness), steps=60, together=False)
    assert result.mean == pytest.approx(31.0 / (staleness + 1), rel=0.02)


def test_the_fill_is_made_with_the_first_weights() -> None:
    """As the runtime does it: draws of steps 0 to k at version 0, all but the last before the first step."""
    ran = simulated(split(2), steps=4).ran
    draws = [r for r in ran if r.task.name == "policy.generate"]
    assert [(r.period, r.step) for r in draws] == [(-2, 0), (-1, 1), (0, 2), (1, 3), (2, 4), (3, 5)]
    moves = [r for r in ran if r.task.kind == "weights"]
    assert draws[2].end <= moves[0].start and draws[3].start >= moves[0].end
    first = next(r for r in ran if r.task.name == "ref.logprobs")
    assert first.start == pytest.approx(draws[1].end) and first.start < draws[2].end


def test_queues_hold_as_many_batches_as_draws_run_ahead() -> None:
    assert [simulated(split(k), steps=9).queue for k in range(4)] == [0, 1, 2, 3]


def test_ending_steps_together_never_makes_them_shorter() -> None:
    for staleness in range(3):
        durations = Durations(1, {"policy.generate": engines()})
        free, bound = (simulated(split(staleness), durations, steps=12, together=t) for t in (False, True))
        assert bound.elapsed >= free.elapsed - EXACT


# ---------------------------------------------------------------- any decision


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    """PPO-like flows of random durations on random slots, one phase after the other in decided time."""
    slots = draw(st.integers(1, 4))
    staleness = draw(st.integers(0, 3))
    names = [("policy.generate", "generate"), ("ref.logprobs", "forward"), ("critic.values", "forward")]
    names += [("policy.update", "train"), ("critic.update", "train")]
    now = 0.0
    phases: list[Phase] = []
    for name, kind in names:
        seconds = draw(st.floats(0.125, 50, width=16))
        earlier = [x.name for x in phases if x.kind != "train" and not (staleness and x.kind == "generate")]
        after = draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else []
        if kind != "generate" and not staleness and "policy.generate" not in after:
            after.append("policy.generate")
        ahead = staleness if kind == "generate" else 0
        slot = f"s{draw(st.integers(1, slots))}"
        phases.append(phase(name, kind, slot, now, seconds, tuple(after), ahead))  # type: ignore[arg-type]
        now += seconds
    at = {x.name: x for x in phases}
    move = draw(st.floats(0, 3, width=16))
    transfer = weights(at["policy.update"].slot, at["policy.generate"].slot, now, move)
    return decision(tuple(phases), (transfer,), now + move, now, staleness)


@settings(max_examples=60, deadline=None)
@given(decisions(), st.booleans(), st.booleans())
def test_no_slot_runs_two_tasks_at_once_and_nothing_starts_early(made: Decision, drawn: bool, together: bool) -> None:
    durations = Durations(3, {"policy.generate": engines(devices=16, sequences=64)}) if drawn else Durations()
    result = simulated(made, durations, steps=5, together=together)
    _check_slots(result.ran)
    _check_order(made, result.ran)


def _check_slots(ran: tuple[Ran, ...]) -> None:
    by_slot: dict[str, list[Ran]] = defaultdict(list)
    for r in ran:
        for slot in r.task.slots:
            by_slot[slot].append(r)
    for runs in by_slot.values():
        for one, two in pairwise(sorted(runs, key=lambda r: (r.start, r.end))):
            assert two.start >= one.end - EXACT


def _check_order(made: Decision, ran: tuple[Ran, ...]) -> None:
    """Inputs of the same step end first; a draw of period i has the weights of all updates before i, and no more."""
    by_step = {(r.task.name, r.step): r for r in ran}
    by_period = {(r.task.name, r.period): r for r in ran}
    for r in ran:
        if r.task.kind == "weights":
            assert r.start >= by_period["policy.update", r.period].end - EXACT
            continue
        for name in made.phase(r.task.name).after:
            assert r.start >= by_step[name, r.step].end - EXACT
        if r.task.name != "policy.generate":
            assert r.start >= by_step["policy.generate", r.step].end - EXACT
        elif r.period > 0:
            moved = next(m for m in ran if m.task.kind == "weights" and m.period == r.period - 1)
            assert r.start >= moved.end - EXACT


@settings(max_examples=40, deadline=None)
@given(decisions())
def test_shares_of_time_are_shares(made: Decision) -> None:
    durations = Durations(3, {"policy.generate": engines(devices=16, sequences=64)})
    result = simulated(made, durations, steps=4)
    for usage in result.usage:
        assert all(-EXACT <= v <= 1 + EXACT for v in usage.shares.values()), usage.shares
        assert sum(usage.shares.values()) == pytest.approx(1)
        assert 0 <= usage.utilisation <= 1 + EXACT
        busy = sum(r.end - r.start for r in result.ran if usage.slot in r.task.slots)
        assert sum(usage.busy.values()) == pytest.approx(busy)


@settings(max_examples=40, deadline=None)
@given(decisions())
def test_no_schedule_beats_the_bound(made: Decision) -> None:
    """A period is at least the load of each slot, and the way round over the steps it may take."""
    result = simulated(made, steps=24, together=False)
    for usage in result.usage:
        assert result.elapsed >= sum(usage.busy.values()) - EXACT
    seconds = {x.name: x.seconds for x in made.phases}
    around = seconds["policy.generate"] + seconds["policy.update"] + made.transfers[0].seconds
    assert result.elapsed >= around * (23 / (made.staleness + 1)) - around - EXACT


def test_memory_is_what_the_decision_counts() -> None:
    made = ppo()
    for peak in simulated(made, steps=2).memory:
        assert peak.peak == pytest.approx(made.peak(peak.slot))
        assert peak.resident == pytest.approx(sum(made.resident(peak.slot).values()))


def test_what_waits_for_nothing_there_is_refused() -> None:
    bad = decision((phase("a.generate", "generate", "a", 0, 1, ("nobody",)),), (), 1, 1)
    with pytest.raises(ValueError, match="waits for `nobody`"):
        simulated(bad)


# ---------------------------------------------------------------- lengths


@pytest.mark.parametrize("slots", [1024, 100, 24, 1])
def test_all_replicas_together_are_the_cost_model_s_queue_one_by_one(slots: int) -> None:
    replicas = engines(devices=8, sequences=398, slots=slots)
    lengths = sampled(replicas.work.lengths, 398, (1, 2))
    assert replicas.slots == min(slots, replicas.share) and replicas.share == 100
    dealt = [lengths[n : n + 100].tolist() for n in range(0, 398, 100)]
    for row, seconds in zip(dealt, replicas.seconds(lengths), strict=True):
        steps = profile_of(row, replicas.slots)
        assert seconds == pytest.approx(replicas.prefill + sum(n * replicas.by_running[int(a)] for n, a in steps))


@pytest.mark.parametrize("sequences", [64, 8192])
def test_equal_lengths_take_what_the_cost_model_says(sequences: int) -> None:
    replicas = engines(0, devices=8, sequences=sequences)
    lengths = sampled(replicas.work.lengths, sequences, (0,))
    assert replicas.seconds(lengths) == pytest.approx([replicas.expected] * 4, rel=1e-9)


def test_drawn_lengths_have_the_mean_and_the_maximum_they_should() -> None:
    lengths = sampled(Lengths(512, 2048), 200_000, (7,))
    assert lengths.mean() == pytest.approx(512, rel=0.01)
    assert lengths.max() == 2048 and lengths.min() > 0


@pytest.mark.parametrize("sequences", [1024, 40_000])
def test_drawn_lengths_take_in_the_mean_about_what_the_cost_model_says(sequences: int) -> None:
    durations = Durations(0, {"policy.generate": engines(sequences=sequences)})
    ratios = [durations.drawn("policy.generate", step).slowest for step in range(8)]
    assert sum(ratios) / len(ratios) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("staleness", [0, 1])
def test_more_variance_never_shortens_the_mean_step(staleness: int) -> None:
    means = []
    for spread in (0, 0.2, 0.4, 0.8, 1.2):
        durations = Durations(5, {"policy.generate": engines(spread, maximum=8192)})
        base = engines(0).expected / durations.engines["policy.generate"].expected  # the same seconds for the mean
        made = split(staleness, generate=20.0 / base)
        means.append(simulated(made, durations, steps=16).mean)
    assert means == sorted(means) and means[-1] > 1.05 * means[0]


def test_replicas_wait_for_the_slowest_the_longer_the_more_there_are() -> None:
    def tail(devices: int) -> float:
        durations = Durations(1, {"policy.generate": engines(devices=devices, sequences=16 * devices)})
        return simulated(split(0), durations, steps=8).usage[0].shares["tail"]

    few, many = tail(8), tail(256)
    assert 0 < few < many


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> Result:
        durations = Durations(seed, {"policy.generate": engines()})
        return simulated(split(1), durations, steps=6, seed=seed, mtbf=100.0, save_every=2, restart=5.0)

    assert run(1) == run(1)
    assert run(1).elapsed != run(2).elapsed


def test_events_don_t_count_devices() -> None:
    def events(devices: int) -> int:
        durations = Durations(0, {"policy.generate": engines(devices=devices, sequences=devices)})
        return simulated(split(1), durations, steps=20).events

    assert events(8) == events(10_000) == 2 * (4 * 20 + 1)


# ---------------------------------------------------------------- failures

WORK, COMMIT, RESTART = 10 * 36.0, 20.0, 60.0


@pytest.mark.parametrize("mtbf", [300.0, 1500.0])
def test_failures_cost_what_the_formula_says(mtbf: float) -> None:
    """Daly (2006), eq. 14: a segment of work and commit takes M·e^(R/M)·(e^(L/M) − 1) in the mean."""
    result = simulated(split(0), steps=8000, mtbf=mtbf, save_every=10, commit=COMMIT, restart=RESTART)
    each = WORK + COMMIT
    expected = 800 * mtbf * math.exp(RESTART / mtbf) * (math.exp(each / mtbf) - 1)
    assert result.elapsed == pytest.approx(expected, rel=0.08)
    assert result.goodput == pytest.approx(800 * WORK / expected, rel=0.08)
    assert result.useful == pytest.approx(800 * WORK)


def test_a_failure_takes_half_a_segment_where_failures_are_rare() -> None:
    """Young (1974): half of the time between commits; exactly, M − L / (e^(L/M) − 1)."""
    mtbf, each = 3000.0, WORK + COMMIT
    result = simulated(split(0), steps=20_000, mtbf=mtbf, save_every=10, commit=COMMIT, restart=0.0)
    lost = [f.lost for f in result.failures]
    exact = mtbf - each / (math.exp(each / mtbf) - 1)
    error = 4 * each / math.sqrt(12 * len(lost))
    assert exact == pytest.approx(each / 2, rel=0.05)
    assert abs(sum(lost) / len(lost) - exact) < error


def test_failures_change_no_step_that_counts() -> None:
    """Steps run again draw the same; queues are in the commit, so nothing is filled twice."""
    made, seconds = split(1), {}
    for mtbf in (None, 90.0):
        durations = Durations(4, {"policy.generate": engines()})
        result = simulated(made, durations, steps=12, mtbf=mtbf, save_every=3, restart=10.0)
        seconds[mtbf] = [s.seconds for s in result.steps]
        assert [s.number for s in result.steps] == list(range(12))
    assert len(result.failures) > 3
    assert seconds[None] == pytest.approx(seconds[90.0])


def test_lost_work_is_counted_apart() -> None:
    result = simulated(split(0), steps=40, mtbf=400.0, save_every=5, restart=30.0, commit=2.0)
    spent: dict[str, float] = defaultdict(float)
    for i in result.incidents:
        spent[i.kind] += i.lost if i.kind == "failure" else i.end - i.start
    assert result.elapsed == pytest.approx(result.useful + sum(spent.values()))
    for usage in result.usage:
        assert usage.shares["stopped"] == pytest.approx(1 - result.goodput)
        assert sum(usage.shares.values()) == pytest.approx(1)
    assert result.lost and all(r.end <= max(f.start for f in result.failures) for r in result.lost)


@pytest.mark.parametrize(("restart", "mtbf"), [(10.0, 20.0), (1000.0, 60.0)])
def test_a_run_that_never_gets_to_a_commit_is_given_up(restart: float, mtbf: float) -> None:
    with pytest.raises(ValueError, match="the commit after step 0 is never reached"):
        simulated(split(0), steps=40, mtbf=mtbf, save_every=20, restart=restart)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 0}, "--steps 0"),
        ({"save_every": 0}, "--save-every 0"),
        ({"mtbf": -3600.0}, "--mtbf -1"),
        ({"restart": -1.0}, "--restart -1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Options(**options)  # type: ignore[arg-type]


# ---------------------------------------------------------------- scaling


@pytest.mark.parametrize(
    ("rates", "ticks"),
    [
        ([1239.0, 1551.0, 4956.0], [1000, 2000, 5000]),
        ([100.0], [100, 200]),
        ([0.03, 7000.0], [0.01, 0.1, 1, 10, 100, 1000, 10000]),
    ],
)
def test_the_axis_of_rates_has_ticks_around_all_of_them(rates: list[float], ticks: list[float]) -> None:
    assert rate_ticks(rates) == pytest.approx(ticks)


def test_rates_at_an_axis_are_written_in_one_way() -> None:
    assert [rate_label(r) for r in (5e4, 2000.0, 1.0, 0.05, 1e-5)] == ["50,000", "2,000", "1", "0.05", "0.00001"]
