"""Recurrences along tokens: the only part of the standard library's mathematics that is Python.

They see packed values (`PerSequence`): the tokens of sequences one after another, with the sequences' lengths.
"""

import torch
from torch import Tensor

from ..dsl.ragged import PerSequence


def gae(reward: PerSequence, values: PerSequence, gamma: float, lam: float) -> PerSequence:
    """Generalised advantage estimation (Schulman et al. 2015, arXiv 1506.02438, equation 16).

    reward, values: [token]; values are V of the state before each token, and V after the last token is 0.
    """
    after = _shift_left(values.padded())
    delta = reward.padded() + gamma * after - values.padded()
    return reward.like(_reverse_scan(delta, gamma * lam))


def discounted(reward: PerSequence, gamma: float) -> PerSequence:
    """The discounted return-to-go, G_t = r_t + γ G_{t+1}. reward: [token]."""
    return reward.like(_reverse_scan(reward.padded(), gamma))


def _shift_left(x: Tensor) -> Tensor:
    """x_{t+1} at t, and 0 after the end. x: [sequence, token]."""
    return torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], dim=1)


def _reverse_scan(x: Tensor, decay: float) -> Tensor:
    """y_t = x_t + decay · y_{t+1}. x: [sequence, token]; padding must be 0, and is at the end."""
    running = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1] - 1, -1, -1):
        running = x[:, t] + decay * running
        out.append(running)
    return torch.stack(out[::-1], dim=1)
