"""README and tutorial, typed as a reader would: files are written, `flowc` runs and must print what the page shows.

`flowrun` is not run: its options are parsed and its flow is checked. Training takes minutes.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from shardflow.compiler.cli import main as flowc
from shardflow.dsl.parser import parse
from shardflow.dsl.printer import format_module
from shardflow.runtime.cli import parser as flowrun_options

from .blocks import MODEL, ROOT, Block, Command, blocks, commands, errors

PAGES = ("README.md", "docs/tutorial.md", "docs/runtime.md", "docs/placement.md")
NOT_RUN = ("cat", "cd", "cp", "git", "head", "mkdir", "pip", "pytest", "source", "torchrun")
"""Commands that a page may show and that are not run here."""


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A page, in the folder its reader is in: the clone, or one beside the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    folder = tmp_path / ("sums" if request.param == "docs/tutorial.md" else "")
    folder.mkdir(exist_ok=True)
    (folder / "model").symlink_to(MODEL)
    monkeypatch.chdir(folder)
    return str(request.param)


def test_a_reader_can_type_it(page: str, request: pytest.FixtureRequest) -> None:
    update = bool(request.config.getoption("--update-golden"))
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in blocks(page):
        if block.file:
            _write(block)
        elif block.language == "console":
            text = text.replace(block.text, _typed(block, update), 1)
    if update:
        (ROOT / page).write_text(text, encoding="utf-8")


def _write(block: Block) -> None:
    """Write the file a block shows; one that the project has must be shown as it is, up to its form."""
    assert block.file
    if (ROOT / block.file).exists():
        here = (ROOT / block.file).read_text(encoding="utf-8")
        assert _form(here) == _form(block.text), f"{block} differs from {block.file}"
    else:
        Path(block.file).write_text(block.text, encoding="utf-8")


def _form(flow: str) -> str:
    return format_module(parse(flow, "shown.flow"))


def _typed(block: Block, update: bool) -> str:
    """The text of a console block after its commands were typed; with `update`, as they print now."""
    return "".join(_shown(command, _run(command), update) for command in commands(block))


def _shown(command: Command, printed: str | None, update: bool) -> str:
    head = f"$ {command.words}\n"
    if command.output is None or printed is None:
        return head + (f"{command.output}\n" if command.output else "")
    if "…" in command.output.splitlines():
        assert not _missing(command.output, printed), f"{command.block}: `{command.words}` prints\n{printed}"
        return f"{head}{command.output}\n"
    if not update:
        assert command.output == printed, f"{command.block}: `{command.words}`; --update-golden writes what it prints"
    return f"{head}{printed}\n"


def _missing(expected: str, printed: str) -> list[str]:
    """The parts between lines `…` that aren't in what was printed."""
    parts = re.split(r"^…$", expected, flags=re.MULTILINE)
    return [part for part in parts if part.strip("\n") not in printed]


def _run(command: Command) -> str | None:
    """What a command prints; None for one that isn't run."""
    name, *words = shlex.split(command.words, comments=True)
    match name:
        case "flowc":
            return _flowc(words)
        case "flowrun":
            _flowrun(words)
        case "python":
            subprocess.run([sys.executable, *words], check=True, timeout=60)
        case _:
            assert name in NOT_RUN, f"{command.block}: `{name}` is no command that these pages show"
    return None


def _flowc(words: list[str]) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        flowc(words)
    return printed.getvalue().strip()


def _flowrun(words: list[str]) -> None:
    """Check the options and the flow; then what a run leaves for later commands is there."""
    args = flowrun_options().parse_args(words)
    settings = [word for setting in args.set for word in ("--set", setting)]
    assert not errors(args.flow, *settings)
    out = args.out or Path("runs") / re.split(r"[:/]", args.flow.removesuffix(".flow"))[-1]
    (out / "models").mkdir(parents=True, exist_ok=True)
    if not (out / "models" / "policy").exists():
        (out / "models" / "policy").symlink_to(MODEL)


# ---------------------------------------------------------------- form


WHOLE = re.compile(r"^(flow|def) ", re.MULTILINE)
FLOWS = [b for p in (*PAGES, "docs/language.md") for b in blocks(p) if b.language == "flow" and WHOLE.search(b.text)]


@pytest.mark.parametrize("block", FLOWS, ids=str)
def test_flows_are_in_canonical_form(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shown.flow").write_text(block.text, encoding="utf-8")
    assert flowc(["fmt", "--check", "shown.flow"]) == 0


def _pages() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    yield from (ROOT / "docs").glob("*.md")


@pytest.mark.parametrize("path", list(_pages()), ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        found = Path(os.path.normpath(path.parent / file)) if file else path
        assert found.exists(), f"{path.name} links to {target}"
        assert not anchor or anchor in _anchors(found), f"{path.name} links to {target}"


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_the_glossary_is_in_order_and_has_each_word_once() -> None:
    words = re.findall(r"^\*\*([\w -]+)\*\* — ", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert words == sorted(set(words), key=str.lower)
