"""Pictures as text: well formed, escaped, whole, and the same for the same scene; `flowc graph` writes them."""

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from shardflow.compiler.cli import main
from shardflow.compiler.drawing import FORMATS, BadPicture, draw
from shardflow.compiler.drawing.decided import decided
from shardflow.compiler.drawing.scene import Detail, Scene
from shardflow.compiler.plan import encode as encode_plan
from shardflow.compiler.search.decision import Decision, encode

from .drawn import DECISIONS, grpo, ppo
from .workbench import Workbench, flow

Output = pytest.CaptureFixture[str]
NASTY = 'a "b" <script>alert(1)</script> & \\N {c} [d] |e| `f` #g; %% \x00\x1b\n$title ü 漢字'


def nasty() -> Scene:
    """A scene all of whose texts are what the formats could stumble over."""
    scene = decided(ppo())
    nodes = tuple(replace(n, title=NASTY, lines=(NASTY,), details=(Detail(NASTY, NASTY),)) for n in scene.nodes)
    lanes = tuple(replace(lane, caption=(NASTY,)) for lane in scene.lanes)
    edges = tuple(replace(e, label=NASTY if e.label else "") for e in scene.edges)
    facts = (Detail(NASTY, NASTY),)
    return replace(scene, title=NASTY, subtitle=NASTY, nodes=nodes, lanes=lanes, edges=edges, facts=facts)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("made", DECISIONS.values(), ids=DECISIONS)
def test_a_picture_is_the_same_every_time_and_shows_everything(made: Callable[[], Decision], ending: str) -> None:
    decision = made()
    text = draw(decided(decision), ending)
    assert text == draw(decided(decision), ending)
    names = [x.name for x in decision.slots] + [x.name for x in decision.phases] + [x.name for x in decision.operators]
    assert [n for n in names if n not in text] == []


@pytest.mark.parametrize("scene", [decided(ppo()), decided(ppo(1)), nasty()], ids=["ppo", "async_ppo", "nasty"])
def test_svg_is_well_formed_and_needs_nothing_else(scene: Scene) -> None:
    text = draw(scene, ".svg")
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg") and root.get("viewBox")
    assert "var(--" not in text and "<script" not in text and "@import" not in text
    assert re.findall(r"https?://[^\s\"<]+", text) == ["http://www.w3.org/2000/svg"]


def test_nodes_of_a_svg_have_titles() -> None:
    root = ElementTree.fromstring(draw(decided(grpo()), ".svg"))
    titles = {t.text for t in root.iter("{http://www.w3.org/2000/svg}title")}
    assert "policy.generate. 14.2 s. tp=2 dp=8" in titles


OUTSIDE = ("src", "href", "xlink:href", "srcset")


class _Page(HTMLParser):
    """Reads a page: ids, references to other places, and whether tags are closed in order."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.cards: list[str] = []
        self.outside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.cards += [given["data-card"] or ""] if "data-card" in given else []
        self.outside += [
            f"{k}={v}" for k, v in attrs if k in ("src", "href", "xlink:href", "srcset") or k.startswith("on")
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("scene", [decided(ppo()), nasty()], ids=["ppo", "nasty"])
def test_a_page_is_whole(scene: Scene) -> None:
    text = draw(scene, ".html")
    page = _Page(text)
    assert page.open == [] and page.outside == []
    assert len(page.ids) == len(set(page.ids))
    assert set(page.cards) <= set(page.ids)
    assert "alert(1)</script>" not in text
    assert re.findall(r"(?:https?:)?//\w[\w.-]+\.\w+", text.split("</style>")[1].split("<script>")[0]) == []


def test_dot_is_escaped() -> None:
    text = draw(nasty(), ".dot")
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)  # Graphviz ends a string at a NUL
    assert text.count('"') == 2 * len(strings) + sum(s.count('\\"') for s in strings)
    assert not re.search(r"(?<!\\)\\N", text)  # a backslash of the flow doesn't become Graphviz's
    without = re.sub(r'"(?:[^"\\]|\\.)*"', "s", text)
    assert re.fullmatch(r"[\w\s{}\[\]=,;.>-]*", without)
    assert without.count("{") == without.count("}") == 1 + len(ppo().slots)


def test_mermaid_is_escaped() -> None:
    lines = draw(nasty(), ".mmd").splitlines()
    assert lines[0] == "flowchart LR"
    quoted = [q for line in lines for q in re.findall(r'"([^"]*)"', line)]
    assert quoted and not any(re.search(r"[<>`|\\\x00-\x1f]", q.replace("<br/>", "")) for q in quoted)
    bare = [re.sub(r'"[^"]*"', "s", line) for line in lines[1:]]
    shapes = r"  subgraph lane\d+\[s\]|    n\d+(\[s\]|\(\[s\]\)|\[\(s\)\]):::\w+|  end"
    assert [
        x for x in bare if not re.fullmatch(rf"{shapes}|  n\d+ (-->|==>|-\.->)(\|s\|)? n\d+|  classDef [^\"]*", x)
    ] == []


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(BadPicture, match="not as"):
        draw(decided(ppo()), ".png")
    with pytest.raises(BadPicture, match="nothing to draw"):
        draw(replace(decided(ppo()), nodes=(), edges=()), ".svg")


# ---------------------------------------------------------------- flowc graph


def run(capsys: Output, *args: str) -> tuple[int, str, str]:
    status = main(["graph", *args])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize("ending", FORMATS)
def test_a_flow_is_drawn(bench: Workbench, capsys: Output, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"picture{ending}"
    assert run(capsys, str(bench.write(flow())), "-o", str(file)) == (0, "", "")
    assert "policy.generate" in file.read_text(encoding="utf-8")


def test_many_ranks_are_drawn_with_their_meshes(bench: Workbench, capsys: Output) -> None:
    status, out, _ = run(capsys, str(bench.write(flow())), "--target", "multi", "--ranks", "4")
    assert status == 0 and out.startswith('digraph "tune"') and 'label="ranks0-3' in out


def test_a_decision_or_a_plan_in_a_file_is_drawn(bench: Workbench, capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "decision.json"
    file.write_bytes(encode(ppo()))
    assert "72.5 s" in run(capsys, str(file))[1]
    file.write_bytes(encode_plan(bench.plan(flow())))
    assert "policy.update" in run(capsys, str(file))[1]
    for wrong in (b"{}", b"[1]", b"not json", b'{"program": []}'):
        file.write_bytes(wrong)
        status, _, err = run(capsys, str(file))
        assert status == 2 and "can't be drawn" in err


def test_wrong_use_is_said(bench: Workbench, capsys: Output, tmp_path: Path) -> None:
    path = str(bench.write(flow()))
    assert ".html, .svg, .dot, .mmd" in run(capsys, path, "-o", "x.png")[2]
    assert "give `--target multi` too" in run(capsys, path, "--ranks", "2")[2]
    assert run(capsys, str(bench.write("flow f(:\n")))[0] == 1
    assert run(capsys, str(tmp_path / "no.json"))[0] == 2
