"""Rewards of reasoning-gym tasks. A data file holds the rows as the package gives them: question, answer, metadata."""

from typing import Any

ENOUGH = 0.99  # some tasks give a little for a wrong answer, which a policy would learn to live on


def solved(text: str, question: str, answer: str, metadata: dict[str, Any]) -> float:
    """1 if reasoning-gym scores the text as right, else 0: part of the points count as none."""
    try:
        from reasoning_gym import get_score_answer_fn
    except ImportError:
        raise RuntimeError('this reward needs reasoning-gym: pip install "shardflow[gym]"') from None
    score = get_score_answer_fn(metadata["source_dataset"])
    return float(score(text, {"question": question, "answer": answer, "metadata": metadata}) >= ENOUGH)
