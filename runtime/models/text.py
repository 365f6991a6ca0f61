"""Text and token ids: prompts, chat templates, responses with their end of turn."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import RunError, RunWarning

if TYPE_CHECKING:
    from .loading import Role

Prompt = str | list[dict[str, Any]]


class TextError(RunError):
    """A text cannot be turned into tokens; the message is one sentence that says what to change."""


def encode_prompt(tokenizer: Any, prompt: Prompt, chat: bool = False) -> list[int]:
    """Token ids of a prompt.

    Text gets the tokenizer's own special tokens, less a closing end of sequence. Messages, or text with chat=True (one
    message of the user), go through the chat template up to where the assistant begins.
    Raises TextError: empty prompt, no tokenizer, no chat template.
    """
    _require(tokenizer, prompt)
    if isinstance(prompt, str):
        _warn_of_lost_characters(tokenizer, prompt)
    if chat or not isinstance(prompt, str):
        return _ids(tokenizer, _template(tokenizer, _messages(prompt), add_generation_prompt=True))
    ids = [int(i) for i in tokenizer(prompt)["input_ids"]]
    if ids and ids[-1] == tokenizer.eos_token_id and _ids(tokenizer, prompt)[-1:] != ids[-1:]:
        ids = ids[:-1]
    if not ids:
        raise TextError(f"the prompt {prompt!r} has no tokens: a prompt needs at least one")
    return ids


def _warn_of_lost_characters(tokenizer: Any, text: str) -> None:
    """A character that the vocabulary can't write is dropped by most tokenizers without a word."""
    known: set[str] = _writable.setdefault(id(tokenizer), set())
    for character in set(text) - known:
        known.add(character)
        # Nothing, or only the token for what is unknown (which may be any special one).
        if not character.isspace() and set(_ids(tokenizer, character)) <= set(tokenizer.all_special_ids):
            warnings.warn(
                f"{_name(tokenizer)} can't write {character!r} (first met in {text[:40]!r}): the model doesn't see it",
                RunWarning,
                stacklevel=3,
            )


_writable: dict[int, set[str]] = {}
"""Characters looked at, by tokenizer: each is looked at once."""


def encode_pair(tokenizer: Any, prompt: Prompt, response: str, chat: bool = False) -> tuple[list[int], list[int]]:
    """Token ids of a prompt and of a given response with its end of turn, as the model would have sampled them.

    Text: the response, then end of sequence. Chat: what the template adds for the assistant's message, up to and with
    its last special token; where a template closes a turn with white space alone, end of sequence replaces it.
    Raises TextError as `encode_prompt`, and where there is no end-of-sequence token.
    """
    context = encode_prompt(tokenizer, prompt, chat)
    if chat or not isinstance(prompt, str):
        return context, _assistant_turn(tokenizer, _messages(prompt), response)
    return context, [*_ids(tokenizer, response), _end(tokenizer)]


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of token ids, without special tokens, white space as the model wrote it."""
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(text)


def stop_ids(role: "Role") -> set[int]:
    """The ids that end a response: whatever generation config, config and tokenizer call end of sequence."""
    named = [getattr(role.module, "generation_config", None), role.config, role.tokenizer]
    ids: set[int] = set()
    for source in named:
        found = getattr(source, "eos_token_id", None)
        ids.update(found if isinstance(found, list | tuple) else [] if found is None else [found])
    return {int(i) for i in ids}


def _assistant_turn(tokenizer: Any, messages: list[dict[str, Any]], response: str) -> list[int]:
    opened = _template(tokenizer, messages, add_generation_prompt=True)
    answer = {"role": "assistant", "content": response}
    closed = _template(tokenizer, [*messages, answer], add_generation_prompt=False)
    if not closed.startswith(opened):
        raise TextError(
            f"the chat template of {_name(tokenizer)} writes an answered conversation differently from an open one, "
            "so a given response cannot be cut out of it; use a template whose generation prompt begins the answer"
        )
    special = {int(i) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    turn = _ids(tokenizer, closed[len(opened) :])
    last = max((i for i, token in enumerate(turn) if token in special), default=-1)
    if last >= 0:
        return turn[: last + 1]
    return [*_ids(tokenizer, closed[len(opened) :].rstrip()), _end(tokenizer)]


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _template(tokenizer: Any, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise TextError(
            f"the tokenizer of {_name(tokenizer)} has no chat template, so messages cannot be encoded; "
            "give prompts as text, or put a chat_template.jinja into the model's directory"
        )
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt))


def _require(tokenizer: Any, prompt: Prompt) -> None:
    if tokenizer is None:
        raise TextError("this model's directory has no tokenizer, so text cannot be encoded; save one into it")
    if not prompt:
        raise TextError("a prompt is empty: it needs at least one character or one message")


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [int(i) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]


def _end(tokenizer: Any) -> int:
    if tokenizer.eos_token_id is None:
        raise TextError(f"the tokenizer of {_name(tokenizer)} names no end-of-sequence token; set its eos_token")
    return int(tokenizer.eos_token_id)


def _name(tokenizer: Any) -> str:
    return repr(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
