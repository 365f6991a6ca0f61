"""What a step's cost depends on and a flow doesn't say: how long prompts and responses are."""

from dataclasses import dataclass

DEFAULT_PROMPT = 512
"""Prompt tokens where nothing says how many."""

DEFAULT_RESPONSE = 512
"""New tokens of a response where not even their limit is known."""


class BadLength(ValueError):
    """A length on the command line that can't be read."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts and responses. response: their mean; longest: that of the tail; None: from the flow's limit."""

    prompt: int | None = None
    response: int | None = None
    longest: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return self.prompt or DEFAULT_PROMPT

    def responses(self, limit: int | None) -> tuple[int, int]:
        """Mean and longest response of a draw of at most `limit` new tokens (None: unknown)."""
        mean = self.response or (max(1, limit // 2) if limit else DEFAULT_RESPONSE)
        mean = min(mean, limit) if limit else mean
        longest = self.longest or limit or 2 * mean
        return mean, max(mean, min(longest, limit) if limit else longest)

    def stated(self) -> tuple[str, ...]:
        """The assumptions in words, each with the option that replaces it."""
        said = []
        if self.prompt is None:
            said.append(f"prompts have {DEFAULT_PROMPT} tokens (`--prompt-tokens` says otherwise)")
        if self.response is None:
            said.append(
                "responses have half of their `max_new_tokens` on average, the longest all of them "
                "(`--response-tokens MEAN,LONGEST` says otherwise)"
            )
        return tuple(said)


def parse_lengths(prompt: str | None, response: str | None) -> Lengths:
    """`--prompt-tokens 1024` and `--response-tokens 512,2048`. Raises BadLength."""
    mean, comma, longest = (response or "").partition(",")
    return Lengths(
        _tokens("--prompt-tokens", prompt) if prompt else None,
        _tokens("--response-tokens", mean) if response else None,
        _tokens("--response-tokens", longest) if comma else None,
    )


def _tokens(option: str, text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise BadLength(f"`{option} {text}`: it is a number of tokens, such as 512")
    return int(text)
