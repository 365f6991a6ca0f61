def exact_match(text: str, answer: str) -> float:
    return float(text.strip() == answer.strip())
