"""Every diagnostic has a page, and the examples on it behave as it says.

An example's first block is the flow; further blocks are files beside it, named by `file=`. What all examples may use
without showing it lies in `pages/`: `train.jsonl`, `rewards.py`, and two models with different tokenizers.
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardflow.compiler import explain
from shardflow.compiler.cli import main

ROOT = Path(__file__).parent.parent.parent
SHARED = Path(__file__).parent / "pages"
PAGES = sorted(explain.PAGES.glob("*.md"))
CODES = [p.stem for p in PAGES]

FENCE = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


OPTIONS = {
    "E0507": ["--target", "multi", "--cluster", "small.toml"],
    "E0508": ["--target", "multi", "--cluster", "2x2xcpu"],
}
"""What the examples of some pages are compiled with, as the pages say."""


@dataclass(frozen=True)
class Example:
    """One example of a page: the flow's language, its text, and the files beside it."""

    language: str
    text: str
    files: dict[str, str]


def example(page: Path, section: str) -> Example:
    text = page.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    (language, _, flow), *rest = FENCE.findall(body)
    return Example(language, flow, {name: content for _, name, content in rest})


def diagnostics(
    shown: Example, folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], *, for_a_run: bool
) -> list[str]:
    """The codes that compiling an example gives."""
    shutil.copytree(SHARED, folder, dirs_exist_ok=True)
    for name, content in shown.files.items():
        (folder / name).write_text(content, encoding="utf-8")
    target = folder / ("example.py" if shown.language == "python" else "example.flow")
    target.write_text(shown.text, encoding="utf-8")
    flow = f"{target}:tune" if shown.language == "python" else str(target)
    extra = [str(folder / o) if o.endswith(".toml") else o for o in options]
    extra += ["--require-sources"] if for_a_run else []
    status = main(["compile", flow, "--format", "json", "-o", str(folder / "plan.json"), *extra])
    said = capsys.readouterr()
    found = json.loads((said.out if status else said.err) or "[]")
    assert status == any(d["severity"] == "error" for d in found)
    return [d["code"] for d in found]


@pytest.mark.parametrize("page", PAGES, ids=CODES)
def test_the_failing_example_fails_for_this_alone(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = OPTIONS.get(page.stem, [])
    is_run = page.stem in ("E0404", "E0405")
    found = diagnostics(example(page, "Fails"), tmp_path, capsys, options, for_a_run=is_run)
    assert set(found) == {page.stem}


@pytest.mark.parametrize("page", PAGES, ids=CODES)
def test_the_mended_example_is_clean(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = OPTIONS.get(page.stem, [])
    assert diagnostics(example(page, "Mended"), tmp_path, capsys, options, for_a_run=True) == []


def test_pages_and_codes_of_the_source_are_the_same() -> None:
    sources = [f for folder in ("dsl", "compiler") for f in (ROOT / folder).rglob("*.py")]
    used = {code for f in sources for code in re.findall(r'"([EW]\d{4})"', f.read_text(encoding="utf-8"))}
    assert sorted(used) == CODES


@pytest.mark.parametrize("page", PAGES, ids=CODES)
def test_a_page_has_its_form(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(rf"# {page.stem}: [^A-Z].*[^.]|# {page.stem}: Python.*[^.]", lines[0])
    assert [line for line in lines if line.startswith("## ")] == ["## Fails", "## Mended"]
    assert max(map(len, lines)) <= 120


def test_explain_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "E0201"]) == 0
    assert capsys.readouterr().out.startswith("# E0201: axes are strangers\n")


def test_explain_lists_the_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "E0299"]) == 2
    assert "no diagnostic E0299; they are E0001, E0002" in capsys.readouterr().err
