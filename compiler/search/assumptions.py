"""What a step's cost depends on and a flow doesn't say: how long prompts and responses are."""

from collections.abc import Iterable
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

    def stated(self, limits: Iterable[int] = ()) -> tuple[str, ...]:
        """The assumptions in words, each with the option that replaces it. limits: new tokens of draws at most."""
        limits = tuple(limits)
        said = []
        if self.prompt is None:
            said.append(f"prompts have {DEFAULT_PROMPT} tokens (`--prompt-tokens` says otherwise)")
        if self.response is None:
            said.append(
                "responses have half of their `max_new_tokens` on average, the longest all of them "
                "(`--response-tokens MEAN,LONGEST` says otherwise)"
            )
        if limits and max(self.longest or 0, self.response or 0) > max(limits):
            said.append(f"no response is longer than {max(limits)} tokens, its `max_new_tokens`")
        return tuple(said)


def parse_lengths(prompt: str | None, response: str | None) -> Lengths:
    """`--prompt-tokens 1024` and `--response-tokens 512,2048`. Raises BadLength."""
    first, comma, last = (response or "").partition(",")
    mean = _tokens("--response-tokens", first) if response else None
    longest = _tokens("--response-tokens", last) if comma else None
    if mean and longest and mean > longest:
        help = f"write MEAN,LONGEST, `{longest},{mean}`"
        raise BadLength(f"`--response-tokens {response}`: a mean of {mean} is above the longest, {longest}: {help}")
    return Lengths(_tokens("--prompt-tokens", prompt) if prompt else None, mean, longest)


def _tokens(option: str, text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise BadLength(f"`{option} {text}`: it is a number of tokens, such as 512")
    return int(text)
