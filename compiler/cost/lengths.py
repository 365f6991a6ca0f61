"""How long responses are: a distribution, because the longest ones decide when a batch is done."""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

SPREAD = 0.8
"""Standard deviation of the logarithm of a response's length, where nothing says it."""

NORMAL = NormalDist()


@dataclass(frozen=True)
class Lengths:
    """Lengths of responses, in tokens: log-normal, cut off at `maximum`, with this mean after the cut.

    spread: standard deviation of the logarithm before the cut; 0: all are equally long.
    """

    mean: float
    maximum: int
    spread: float = SPREAD

    def __post_init__(self) -> None:
        if not 0 < self.mean <= self.maximum or self.spread < 0:
            raise ValueError(f"lengths of mean {self.mean} up to {self.maximum} with spread {self.spread}")

    @classmethod
    def fixed(cls, tokens: int) -> "Lengths":
        """All equally long."""
        return cls(tokens, tokens, 0)

    @property
    def is_fixed(self) -> bool:
        return self.spread == 0 or self.mean >= self.maximum

    def quantile(self, share: float) -> float:
        """The length that `share` of the responses don't exceed. share: above 0, below 1."""
        if self.is_fixed:
            return self.mean
        return min(self.maximum, math.exp(_center(self) + self.spread * NORMAL.inv_cdf(share)))

    @property
    def center(self) -> float:
        """The mean of the logarithm before the cut. It needs lengths that aren't fixed."""
        return _center(self)

    def parts(self, count: int) -> list[float]:
        """The mean lengths of `count` equal parts of all responses, shortest first: their mean is `mean` exactly."""
        if self.is_fixed:
            return [self.mean] * count
        ends = [self._below(i / count) for i in range(count + 1)]
        return [(high - low) * count for low, high in pairwise(ends)]

    def longest(self, count: int) -> float:
        """The mean of the longest one in `count` responses."""
        return self.mean if self.is_fixed else (self.mean - self._below(1 - 1 / count)) * count

    def _below(self, share: float) -> float:
        """What the shortest `share` of the responses have together, per response of all."""
        if share in (0, 1):
            return share * self.mean
        center, spread = _center(self), self.spread
        edge = min(NORMAL.inv_cdf(share), (math.log(self.maximum) - center) / spread)
        cut = share - NORMAL.cdf(edge)
        return math.exp(center + spread**2 / 2) * NORMAL.cdf(edge - spread) + self.maximum * max(0.0, cut)

    @property
    def squared(self) -> float:
        """The mean of the square."""
        if self.is_fixed:
            return self.mean**2
        return _cut_moment(_center(self), self.spread, self.maximum, 2)

    @property
    def weighted(self) -> float:
        """The mean length as a token sees it: E[n²]/E[n], longer than the mean."""
        return self.squared / self.mean


@lru_cache(4096)
def _center(lengths: Lengths) -> float:
    """The mean of the logarithm before the cut that gives this mean after it, by bisection."""
    low, high = math.log(lengths.mean) - 2 * lengths.spread**2 - 1, math.log(lengths.maximum) + 40 * lengths.spread
    for _ in range(80):
        middle = (low + high) / 2
        below = _cut_moment(middle, lengths.spread, lengths.maximum, 1) < lengths.mean
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


def _cut_moment(center: float, spread: float, maximum: float, power: int) -> float:
    """E[min(X, maximum)^power] of a log-normal X."""
    edge = (math.log(maximum) - center) / spread
    below = math.exp(power * center + (power * spread) ** 2 / 2) * NORMAL.cdf(edge - power * spread)
    return below + maximum**power * (1 - NORMAL.cdf(edge))
