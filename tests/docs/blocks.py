"""Fenced blocks of Markdown pages, and tables that are filled from the vocabulary."""

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from shardflow.compiler.cli import main

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "models" / "addition"

_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SLOT = re.compile(r"(<!-- (table|words): ([\w.]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the `file=` of its info string, and its text."""

    page: str
    line: int
    language: str
    file: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> Iterator[Block]:
    """All fenced blocks of a page (a path from the repository's root), in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        named = re.search(r"file=(\S+)", match[2])
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, match[1], named[1] if named else None, match[3])


@dataclass(frozen=True)
class Command:
    """One `$ …` line of a console block, and the lines that it printed (None where the page leaves them out)."""

    block: Block
    words: str
    output: str | None


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block. Output that holds a line `…` is not to be compared."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        words, _, output = part.partition("\n")
        yield Command(block, words.strip(), output.strip() or None)


def filled(text: str, content: Callable[[str, str], str]) -> str:
    """The page with every slot `<!-- table: NAME --> … <!-- end -->` filled by `content(kind, name)`."""
    return _SLOT.sub(lambda m: f"{m[1]}{content(m[2], m[3])}{m[5]}", text)


def errors(target: Path | str, *options: str) -> list[str]:
    """What `flowc check` refuses of a file or of one flow of it."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        main(["check", str(target), "--format", "json", *options])
    found = json.loads(printed.getvalue())
    return [f"{d['code']}: {d['message']}" for d in found if d["severity"] == "error"]
