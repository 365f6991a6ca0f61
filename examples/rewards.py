"""Rewards of the addition examples: plain Python functions of one sample each."""


def right(text: str, answer: str) -> float:
    """1 if the text is the answer, digit by digit, and nothing else."""
    return float(text == answer)
