"""Rewards and penalties that most tasks share."""


def exact_match(text: str, answer: str) -> float:
    """1 if the text is the answer, up to spaces at its ends."""
    return float(text.strip() == answer.strip())


def contains(text: str, answer: str) -> float:
    """1 if the answer stands anywhere in the text."""
    return float(answer.strip() in text)


def overlong(length: int, max_length: int, buffer: int) -> float:
    """The soft length penalty of DAPO (Yu et al. 2025, arXiv 2503.14476, equation 13): 0 up to `max_length - buffer`
    tokens, then linearly down to -1 at `max_length`."""
    allowed = max_length - buffer
    return 0.0 if length <= allowed else max(-1.0, (allowed - length) / buffer)
