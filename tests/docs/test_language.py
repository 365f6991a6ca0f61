"""docs/language.md: its tables are the vocabulary's, and its examples compile."""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from shardflow.dsl import flows_of, vocabulary
from shardflow.dsl.parser import parse
from shardflow.dsl.vocabulary import Option, Options

from .blocks import MODEL, ROOT, Block, blocks, errors, filled

PAGE = "docs/language.md"

MEANINGS = {
    "beta1": "decay of the mean of the gradients",
    "beta2": "decay of the mean of their squares",
    "eps": "added to the denominator",
    "weight_decay": "decoupled weight decay",
    "schedule": "shape of the learning rate after the warm-up",
    "nodes": "nodes of the cluster",
}
"""Of options that say nothing of themselves in the vocabulary."""

# ---------------------------------------------------------------- tables


def option_rows(options: Options) -> Iterator[str]:
    yield "| option | takes | default | meaning |\n|---|---|---|---|"
    for name, option in options.items():
        yield f"| `{name}` | {_takes(option)} | {_default(option)} | {option.doc or MEANINGS.get(name, '')} |"


def _takes(option: Option) -> str:
    if option.choices:
        quote = '"' if option.kind == "str" else ""
        return " ".join(f"`{quote}{choice}{quote}`" for choice in option.choices)
    kinds = {"int": "a whole number", "float": "a number", "bool": "`true` `false`", "str": "text", "value": "a value"}
    return f"a number of {' or '.join(option.units)}" if option.units else kinds[option.kind]


def _default(option: Option) -> str:
    match option.default:
        case None:
            return ""
        case bool(value):
            return f"`{str(value).lower()}`"
        case str(value):
            return f"`{value}`" if option.kind == "word" else f'`"{value}"`'
        case value:
            return f"`{value}`"


FIELD_MEANINGS = {
    "text": "the response",
    "length": "how many tokens it has",
    "truncated": "it was ended by `max_new_tokens`, not by the model",
    "tokens": "token ids",
    "logprobs": "log-probabilities, as the sampler reports them",
    "position": "0 for the response's first token",
    "last": "it is the response's last token",
    "reward": "rewards of an environment; 0 without one",
    "turn": "the turn of an environment; 0 without one",
}


def field_rows() -> Iterator[str]:
    yield "| field | dtype | axis | meaning |\n|---|---|---|---|"
    for name, (dtype, axis) in vocabulary.ROLLOUT_FIELDS.items():
        yield f"| `{name}` | {dtype} | {axis} | {FIELD_MEANINGS[name]} |"


def content(kind: str, name: str) -> str:
    """What a slot of the page holds."""
    table, _, key = name.partition(".")
    found = getattr(vocabulary, table)
    if kind == "words":
        words: Iterable[str] = found if isinstance(found, tuple) else sorted(found)
        return ", ".join(f"`{word}`" for word in words) + "\n"
    rows = field_rows() if table == "ROLLOUT_FIELDS" else option_rows(found[key] if key else found)
    return "\n".join(rows) + "\n"


def test_the_tables_are_those_of_the_vocabulary(request: pytest.FixtureRequest) -> None:
    path = ROOT / PAGE
    before = path.read_text(encoding="utf-8")
    after = filled(before, content)
    if request.config.getoption("--update-golden"):
        path.write_text(after, encoding="utf-8")
    else:
        assert before == after, "a table of docs/language.md is out of date; fill it with --update-golden"


@pytest.mark.parametrize("table", [n for n in vars(vocabulary) if n.isupper() and n != "RESERVED"])
def test_every_name_of_the_vocabulary_is_in_the_page(table: str) -> None:
    found = getattr(vocabulary, table)
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    missing = [name for name in _names(found) if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", text)]
    assert not missing


def _names(found: object) -> Iterator[str]:
    yield from found if isinstance(found, Iterable) else ()
    for value in found.values() if isinstance(found, Mapping) else ():
        yield from value if isinstance(value, Mapping) else ()


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("### Reductions", {n: ("x", "q") if n == "quantile" else ("x",) for n in vocabulary.REDUCTIONS}),
        ("### Pointwise functions", vocabulary.POINTWISE),
        ("### Structural functions", vocabulary.STRUCTURAL),
    ],
)
def test_the_functions_have_their_parameters(heading: str, expected: Mapping[str, tuple[str, ...]]) -> None:
    section = (ROOT / PAGE).read_text(encoding="utf-8").split(f"{heading}\n")[1].split("\n#")[0]
    shown = dict(re.findall(r"^\| `(\w+)\(([\w, ]+)\)` \|", section, re.MULTILINE))
    assert shown == {name: ", ".join(params) for name, params in expected.items()}


# ---------------------------------------------------------------- examples

ROW = '{"prompt": "1+1=", "question": "1+1=", "answer": "2", "chosen": "2", "rejected": "3", "response": "2"}\n'
HEADER = "import rewards\nfrom std.advantages import whiten, z\nfrom std.losses import clipped_policy_loss\n\n"
AROUND = {
    "policy": 'model policy = causal_lm("model")',
    "ref": "model ref = frozen(policy)",
    "prompts": 'prompts = read("train.jsonl", batch=64 prompts)',
    "rollout": "rollout = policy.generate(prompts, n=4, max_new_tokens=5)",
    "reward": "reward = rewards.exact_match(rollout.text, prompts.answer)",
    "adv": "adv = z(reward)",
}
"""What stands around an example that is only lines of a flow, where the example doesn't say it itself."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the examples read."""
    made = tmp_path_factory.mktemp("language")
    for name in ("train.jsonl", "test.jsonl"):
        (made / name).write_text(ROW * 64, encoding="utf-8")
    shutil.copytree(MODEL, made / "model")
    config = (made / "model" / "config.json").read_text(encoding="utf-8")
    even = config.replace('"vocab_size": 13', '"vocab_size": 16')  # so that two devices can share it
    (made / "model" / "config.json").write_text(even, encoding="utf-8")
    (made / "rewards.py").write_text("def exact_match(text: str, answer: str) -> float: ...\n", encoding="utf-8")
    for block in blocks(PAGE):
        if block.file:
            (made / block.file).write_text(block.text, encoding="utf-8")
    return made


def whole(text: str) -> str:
    """The example as a file: lines of a flow get a flow around them."""
    if re.search(r"^(flow|def) ", text, re.MULTILINE):
        return text
    said = set(re.findall(r"^(?:model +|state +)?(\w+) *=", text, re.MULTILINE))
    lines = [line for name, line in AROUND.items() if name not in said]
    if not re.search(r"update policy\(", text):
        lines += ["update policy(adamw(lr=1e-6)):", "    minimize -mean(policy.logprobs(rollout) * adv)"]
    body = [*lines, *text.splitlines()]
    return HEADER + "flow example():\n" + "".join(f"    {line}\n" for line in body)


@pytest.mark.parametrize("block", [b for b in blocks(PAGE) if b.language == "flow"], ids=str)
def test_the_flows_compile(block: Block, folder: Path) -> None:
    path = folder / f"line{block.line}.flow"
    path.write_text(whole(block.text), encoding="utf-8")
    flows = re.findall(r"^flow (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    if not flows:
        parse(block.text, str(path))
    for name in flows:
        assert not errors(f"{path}:{name}", *(["--set", "data=train.jsonl"] if name == "small" else []))


@pytest.mark.parametrize("block", [b for b in blocks(PAGE) if b.language == "python"], ids=str)
def test_the_python_compiles(block: Block, folder: Path) -> None:
    assert block.file
    compile(block.text, block.file, "exec")
    path = folder / block.file
    for name in flows_of(str(path)):
        assert not errors(f"{path}:{name}")
