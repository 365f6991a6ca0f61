"""docs/errors.md lists the pages of all diagnostics."""

import re
from collections.abc import Iterator

import pytest

from .blocks import ROOT

PAGES = ROOT / "compiler" / "errors"
HEAD = """# Errors and warnings

Every diagnostic has a page with what it means, a failing example and a mended one. `flowc explain CODE` prints it.
Errors start with E and stop a flow. Warnings start with W and stop nothing.
"""
GROUPS = {
    "E000": "Syntax",
    "E001": "Syntax",
    "E002": "The Python front end",
    "E01": "Names, parameters, options, modules",
    "E02": "Axes, dtypes, units",
    "E03": "Models, updates, losses, draws",
    "E04": "Batches, data files, model directories",
    "E05": "Clusters and placement",
    "E06": "Python operators",
    "W": "Warnings",
}


def index() -> Iterator[str]:
    """The lines of the page."""
    yield from HEAD.splitlines()
    shown = ""
    for page in sorted(PAGES.glob("[EW]????.md")):
        group = next(title for start, title in GROUPS.items() if page.stem.startswith(start))
        if group != shown:
            shown = group
            yield from ("", f"## {group}", "", "| code | |", "|---|---|")
        title = re.fullmatch(rf"# {page.stem}: (.+)", page.read_text(encoding="utf-8").splitlines()[0])
        assert title, f"{page.name} doesn't start with `# {page.stem}: TITLE`"
        shown_title = title[1].replace("|", "\\|")
        yield f"| [{page.stem}](../compiler/errors/{page.name}) | {shown_title} |"


def test_the_index_is_complete(request: pytest.FixtureRequest) -> None:
    path = ROOT / "docs" / "errors.md"
    text = "\n".join(index()) + "\n"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "write it with --update-golden"
