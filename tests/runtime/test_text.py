"""Prompts, chat templates, given responses."""

from collections.abc import Callable
from typing import Any

import pytest

from shardflow.runtime.models import TextError, decode, encode_pair, encode_prompt, stop_ids

from . import tiny
from .conftest import RoleMaker

EOS, BOS = 257, 256
CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny.make_tokenizer()


def plain(tokenizer: Any, text: str) -> list[int]:
    return [int(i) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]


def wrap_in(tokenizer: Any, template: str) -> Any:
    """A tokenizer that puts special tokens around every text, as many do."""
    from tokenizers.processors import TemplateProcessing

    tokenizer._tokenizer.post_processor = TemplateProcessing(template, special_tokens=[("<bos>", BOS), ("<eos>", EOS)])
    return tokenizer


def test_text_round_trip(tokenizer: Any) -> None:
    for text in ["1 + 2 = ", " a , b . c ' s ", "Straße, 東京 🙂\n\n"]:
        assert decode(tokenizer, encode_prompt(tokenizer, text)) == text
    assert decode(tokenizer, [*plain(tokenizer, "yes"), EOS]) == "yes"


def test_default_special_tokens_but_no_end() -> None:
    both = wrap_in(tiny.make_tokenizer(), "<bos> $A <eos>")
    assert encode_prompt(both, "ab") == [BOS, *plain(both, "ab")]
    # An end that the user wrote stays.
    assert encode_prompt(tiny.make_tokenizer(), "ab<eos>")[-1] == EOS


def test_messages_open_the_assistants_turn(tokenizer: Any) -> None:
    expected = plain(tokenizer, "<|system|>be brief<eos>\n<|user|>hi<eos>\n<|assistant|>")
    assert encode_prompt(tokenizer, CHAT) == expected
    assert encode_prompt(tokenizer, "hi", chat=True) == plain(tokenizer, "<|user|>hi<eos>\n<|assistant|>")
    assert encode_prompt(wrap_in(tiny.make_tokenizer(), "<bos> $A"), CHAT) == expected  # the template writes its own


def test_given_responses_end_their_turn(tokenizer: Any) -> None:
    assert encode_pair(tokenizer, "2+2=", "4") == (plain(tokenizer, "2+2="), [*plain(tokenizer, "4"), EOS])
    context, response = encode_pair(tokenizer, CHAT, "hello")
    assert context == encode_prompt(tokenizer, CHAT)
    assert response == [*plain(tokenizer, "hello"), EOS]  # without the template's newline
    assert encode_pair(tokenizer, "hi", "hello", chat=True)[1] == response
    assert encode_pair(tokenizer, "hi", "")[1] == [EOS]


def test_a_template_without_special_tokens_gets_an_end() -> None:
    tokenizer = tiny.make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    assert encode_pair(tokenizer, CHAT, "hello")[1] == [*plain(tokenizer, "hello"), EOS]


def test_errors_say_what_to_do(tokenizer: Any) -> None:
    bare = tiny.make_tokenizer()
    bare.chat_template, bare.name_or_path = None, "my/model"
    moody = tiny.make_tokenizer()
    moody.chat_template = "{% if add_generation_prompt %}open{% else %}closed{% endif %}"
    endless = tiny.make_tokenizer()
    endless.eos_token = None
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: encode_prompt(tokenizer, ""), "a prompt is empty"),
        (lambda: encode_prompt(tokenizer, []), "a prompt is empty"),
        (lambda: encode_prompt(bare, CHAT), "the tokenizer of 'my/model' has no chat template.*give prompts as text"),
        (lambda: encode_pair(moody, CHAT, "x"), "writes an answered conversation differently"),
        (lambda: encode_pair(endless, "a", "x"), "names no end-of-sequence token"),
        (lambda: encode_prompt(None, "a"), "has no tokenizer"),
    ]
    for call, message in cases:
        with pytest.raises(TextError, match=message):
            call()


def test_stop_ids_come_from_everywhere(make_role: RoleMaker) -> None:
    role = make_role("llama")
    assert stop_ids(role) == {EOS}
    role.module.generation_config.eos_token_id = [3, 4]  # type: ignore[union-attr]
    role.config.eos_token_id = None
    assert stop_ids(role) == {3, 4, EOS}
