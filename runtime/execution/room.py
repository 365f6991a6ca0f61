"""Whether sequences fit into the positions a model has: one that does not is told by its row beforehand."""

from collections.abc import Sequence
from typing import Any

from ..boundary import short
from ..errors import RunError
from ..models import Sequences
from ..models.loading import Role
from ..values import Frame


def positions_of(role: Role) -> int | None:
    """How many tokens the model reads at most; None if its config doesn't say."""
    return getattr(role.config.get_text_config(), "max_position_embeddings", None)


def check_prompts(
    name: str, role: Role, frame: Frame, prompts: Sequence[Any], lengths: Sequence[int], new: Sequence[int]
) -> None:
    """Raise RunError naming the first prompt that leaves no room for its new tokens."""
    room = positions_of(role)
    for row, (prompt, length, more) in enumerate(zip(prompts, lengths, new, strict=True)):
        if room is not None and length + more > room:
            raise RunError(
                f"`{name}`: {frame.row_name(row)} has a prompt of {length} tokens and may get {more} more, but "
                f"`{role.name}` reads at most {room}: shorten it, leave it out, or lower max_new_tokens\n"
                f"  prompt = {short(prompt)}"
            )


def check_sequences(name: str, role: Role, frame: Frame, seqs: Sequences, texts: Sequence[Any]) -> None:
    """Raise RunError naming the first row that is longer than what the model reads."""
    room = positions_of(role)
    if room is None:
        return
    row = next((n for n, length in enumerate(seqs.lengths) if length > room), None)
    if row is not None:
        prompt = f"\n  prompt = {short(texts[row])}" if texts else ""
        raise RunError(
            f"`{name}`: {frame.row_name(row)} has {seqs.lengths[row]} tokens, but `{role.name}` reads at most {room}: "
            f"shorten it or leave it out{prompt}"
        )
