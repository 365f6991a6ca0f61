"""The decision to simulate: searched for a flow on a cluster, with what the cost model has to know to draw lengths."""

from dataclasses import dataclass

from ..compilation import Checked, compile_flow
from ..planning import Wishes, decide, shapes_of
from ..search.decision import Decision
from ..search.prices import Prices, prices_of
from ..search.problem import Problem, problem_of


@dataclass(frozen=True)
class Searched:
    """A decision, what was to be placed, and what that costs on the cluster."""

    decision: Decision
    problem: Problem
    prices: Prices


def searched(checked: Checked, wishes: Wishes) -> Searched:
    """The best placement of a flow on a cluster. Raises FlowError where none fits, and BadSetting."""
    decision = decide(checked, wishes, with_alternatives=False)
    problem = problem_of(compile_flow(checked), wishes.lengths)
    prices = prices_of(problem, wishes.cluster, shapes_of(checked, problem, wishes.models))
    return Searched(decision, problem, prices)
