"""The page in a real browser: it acts, nothing overlaps, everything can be read, and nothing is fetched.

Playwright drives a Chromium that is installed already: its wheel brings its own driver, so nothing is downloaded, and
unlike a dump of the page it can hover, press keys and read computed styles.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardflow.compiler.drawing import draw
from shardflow.compiler.drawing.decided import decided
from shardflow.compiler.drawing.planned import planned

from .drawn import DECISIONS
from .workbench import Workbench, flow

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("CHROMIUM") or next((p for n in NAMES if (p := shutil.which(n))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium, or set CHROMIUM")

FLAGS: tuple[str, ...] = ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking")
FLAGS += ("disable-component-update", "disable-sync", "disable-dev-shm-usage")
WIDEST = '.figure { font-family: "DejaVu Sans", Verdana, sans-serif !important; }'
"""The widest fonts that people have: what the layout leaves room for."""

SCENES = {name: decided(made()) for name, made in DECISIONS.items()}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        running = p.chromium.launch(executable_path=CHROMIUM, args=[f"--{f}" for f in FLAGS])
        yield running
        running.close()


class Shown:
    """A page, and what it has complained of and asked for."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.context = browser.new_context(offline=True, **context)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.said.append(m.text))
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.goto(file.as_uri())
        self.told = self.page.locator("#told")

    def thing(self, title: str) -> Any:
        """The box of a node."""
        return self.page.locator(f'.thing[aria-label^="{title}."]').first


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    shown: list[Shown] = []

    def opened(scene: str = "ppo", width: int = 1280, height: int = 900, **context: Any) -> Shown:
        file = tmp_path / f"{scene}.html"
        if not file.exists():
            file.write_text(draw(SCENES[scene], ".html"), encoding="utf-8")
        shown.append(Shown(browser, file, viewport={"width": width, "height": height}, **context))
        return shown[-1]

    yield opened
    for each in shown:
        assert each.said == [], "the console is silent"
        assert [u for u in each.asked if not u.startswith("file:")] == [], "nothing is fetched"
        each.context.close()


# ---------------------------------------------------------------- it acts


def test_pointing_shows_details_and_a_click_keeps_them(show: Any) -> None:
    s = show()
    assert s.told.is_hidden()
    s.thing("policy.update").hover(position={"x": 60, "y": 12})
    assert s.told.is_visible()
    for said in ("tp=4 fsdp=8, recompute", "8,192 tokens", "30.5 s", "29.1 of 74 GB", "optimizer"):
        assert said in s.told.inner_text()
    s.page.mouse.move(5, 5)
    assert s.told.is_hidden()
    s.thing("policy.update").click(position={"x": 60, "y": 12})
    s.page.mouse.move(5, 5)
    assert s.told.is_visible()
    s.told.get_by_role("button", name="Close").click()
    assert s.told.is_hidden()


def test_edges_chips_and_bars_have_details_too(show: Any) -> None:
    s = show()
    s.page.locator(".edge.weights .hit").dispatch_event("click")
    assert "12 GB into the busiest device" in s.told.inner_text()
    s.page.keyboard.press("Escape")
    s.page.locator(".thing.reload").first.click()
    assert "host to ranks0-31" in s.told.inner_text()
    s.page.keyboard.press("Escape")
    bar = s.page.locator(".thing.bar-group.train").first
    bar.hover()
    assert ".update" in s.told.inner_text()
    assert "on" in (bar.get_attribute("class") or "").split()


def test_the_keyboard_is_enough(show: Any) -> None:
    s = show()
    s.page.keyboard.press("Tab")  # the figure, to move it sideways
    assert s.page.evaluate("document.activeElement.getAttribute('role')") == "region"
    for _ in range(30):
        s.page.keyboard.press("Tab")
        label = s.page.evaluate("document.activeElement.getAttribute('aria-label')") or ""
        if label.startswith("policy.generate."):
            break
    assert s.told.is_visible()
    s.page.keyboard.press("Enter")
    assert "pinned" in s.told.get_attribute("class")
    s.page.keyboard.press("Escape")
    assert s.told.is_hidden()
    assert s.page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("policy.generate.")


def test_everything_that_acts_has_a_role_and_a_name(show: Any) -> None:
    s = show()
    bare = s.page.locator("[tabindex]:not([aria-label]), [role=button]:not([aria-label])")
    assert bare.count() == 0
    assert s.page.locator("svg.figure:not([aria-label]):not([aria-hidden])").count() == 0


@pytest.mark.parametrize("width", [375, 1280, 2560])
def test_details_stay_in_the_window(show: Any, width: int) -> None:
    s = show(width=width, height=800)
    things = s.page.locator(".thing[role=button]:visible")
    for index in range(0, things.count(), 3):
        things.nth(index).scroll_into_view_if_needed()
        things.nth(index).dispatch_event("click")
        box = s.told.bounding_box()
        assert box["x"] >= 0 and box["y"] >= 0
        assert box["x"] + box["width"] <= width and box["y"] + box["height"] <= 800
        s.page.keyboard.press("Escape")


# ---------------------------------------------------------------- it can be read


TEXTS = """() => [...document.querySelectorAll('figure svg text')].filter((t) => t.checkVisibility()).map((t) => {
  const r = t.getBoundingClientRect(), s = t.closest('svg').getBoundingClientRect();
  return [t.textContent, r.left, r.top, r.right, r.bottom, r.left >= s.left - 1 && r.right <= s.right + 1];
})"""
OUT_OF_BOX = """() => [...document.querySelectorAll('.thing')].flatMap((g) => {
  const box = g.querySelector('.box, .chip');
  if (!box) return [];
  const b = box.getBoundingClientRect();
  return [...g.querySelectorAll('text')].filter((t) => {
    const r = t.getBoundingClientRect();
    return r.left < b.left || r.right > b.right || r.top < b.top - 1 || r.bottom > b.bottom + 1;
  }).map((t) => t.textContent);
})"""


@pytest.mark.parametrize("font", ["", WIDEST], ids=["usual", "widest"])
@pytest.mark.parametrize("width", [375, 1280, 3840])
@pytest.mark.parametrize("scene", SCENES)
def test_no_texts_overlap_or_leave_their_boxes(show: Any, scene: str, width: int, font: str) -> None:
    s = show(scene, width)
    if font:
        s.page.add_style_tag(content=font)
    texts = s.page.evaluate(TEXTS)
    assert len(texts) > 20
    assert [t[0] for t in texts if not t[5]] == []
    meeting = [(a[0], b[0]) for i, a in enumerate(texts) for b in texts[i + 1 :] if _meet(a, b)]
    assert meeting == []
    assert s.page.evaluate(OUT_OF_BOX) == []


def _meet(a: list[Any], b: list[Any]) -> bool:
    """Whether two texts overlap by more than the empty room around letters."""
    slack = 0.22 * min(a[4] - a[2], b[4] - b[2])
    return bool(min(a[3], b[3]) - max(a[1], b[1]) > 0.5 and min(a[4], b[4]) - max(a[2], b[2]) > slack)


@pytest.mark.parametrize("width", [375, 768, 1280, 3840])
def test_the_page_is_never_wider_than_the_window(show: Any, width: int) -> None:
    s = show(width=width)
    s.page.locator("summary").click()
    assert s.page.evaluate("document.documentElement.scrollWidth") <= width
    size = s.page.evaluate("parseFloat(getComputedStyle(document.documentElement).fontSize)")
    assert 15 <= size <= 22


SCALE = """() => [...document.querySelectorAll('figure svg')].filter((s) => s.checkVisibility()).map((s) =>
  s.getBoundingClientRect().width / s.viewBox.baseVal.width)"""
SIDEWAYS = "() => [...document.querySelectorAll('.scroll')].map((b) => b.scrollWidth > b.clientWidth)"


@pytest.mark.parametrize("width", [375, 768, 1280, 3840])
def test_letters_of_the_actual_size_are_never_too_small_nor_huge(show: Any, width: int) -> None:
    s = show(width=width)
    for button in s.page.locator(".size:visible").all():
        if button.inner_text() == "Actual size":
            button.click()
    assert [f for f in s.page.evaluate(SCALE) if not 0.855 <= f <= 2.4] == []


def test_a_narrow_window_shows_whole_figures_until_they_are_asked_for_in_their_size(show: Any) -> None:
    s = show(width=375, height=700, has_touch=True)
    assert s.page.evaluate(SIDEWAYS) == [False, False]
    s.page.get_by_role("button", name="Actual size, Placement").tap()
    assert s.page.evaluate(SIDEWAYS) == [True, False]
    s.page.evaluate("document.querySelector('.scroll').scrollLeft = 300")
    s.page.wait_for_selector(".scroll.moved")
    s.page.get_by_role("button", name="Fit to window, Placement").tap()
    assert s.page.evaluate(SIDEWAYS) == [False, False]
    s.page.wait_for_function("!document.querySelector('.scroll').classList.contains('moved')")
    assert s.page.locator(".headings").first.get_attribute("transform") == "translate(0 0)"


def test_a_tap_on_a_small_phase_shows_its_details(show: Any) -> None:
    s = show(width=375, height=700, has_touch=True)
    s.thing("policy.update").tap()
    assert s.told.is_visible() and "29.1 of 74 GB" in s.told.inner_text()
    s.told.get_by_role("button", name="Close").tap()
    assert s.told.is_hidden()


def test_a_narrow_window_lists_the_boxes_too(show: Any) -> None:
    s = show(width=375, height=700, has_touch=True)
    listed = s.page.locator(".nodes button")
    assert listed.count() == s.page.locator("figure svg .thing:has(.box)").count() > 6
    assert listed.first.inner_text().split("\n")[0] == "1 policy.generate"
    listed.first.tap()
    assert s.told.is_visible() and s.told.get_attribute("aria-label") == "policy.generate"
    s.page.keyboard.press("Escape")
    s.page.set_viewport_size({"width": 1280, "height": 900})
    assert listed.first.is_hidden()


@pytest.mark.parametrize(("width", "shown"), [(375, 2), (768, 2), (1920, 0)])
def test_the_size_can_be_chosen_where_the_window_is_too_narrow_for_it(show: Any, width: int, shown: int) -> None:
    s = show(width=width)
    assert s.page.locator(".size:visible").count() == shown
    s.page.set_viewport_size({"width": 1920, "height": 900})
    s.page.wait_for_function("!document.querySelector('.size:not([hidden])')")


def test_what_a_page_is_used_with_is_large_enough_to_be_hit(show: Any) -> None:
    s = show(width=375, height=700, has_touch=True)
    s.thing("policy.update").tap()
    for each in s.page.locator("button:visible, summary").all():
        box = each.bounding_box()
        assert min(box["width"], box["height"]) >= 24, each.inner_text()


def test_names_of_lanes_stay_where_a_figure_is_moved(show: Any) -> None:
    s = show(width=375)
    s.page.locator(".size").first.click()
    s.page.evaluate("document.querySelector('.scroll').scrollLeft = 300")
    s.page.wait_for_selector(".scroll.moved")
    left = (
        "Math.min(...[...document.querySelectorAll('.scroll .lane-name')].map((t) => t.getBoundingClientRect().left))"
    )
    assert 0 <= s.page.evaluate(left) < 60


CONTRASTS = """() => {
  const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
  const linear = (x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  const light = (c) => rgb(c).slice(0, 3).reduce((sum, x, i) => sum + linear(x / 255) * [0.2126, 0.7152, 0.0722][i], 0);
  const solid = (e, fill) => /^rgb\\(/.test(fill) && ['rect', 'circle', 'path'].includes(e.tagName);
  const ground = (t, r) => {
    for (const e of document.elementsFromPoint(r.left + r.width / 2, r.top + r.height / 2)) {
      const s = getComputedStyle(e);
      if (e === t || e.tagName === 'text') continue;
      if (e instanceof SVGElement && solid(e, s.fill)) return s.fill;
      if (!(e instanceof SVGElement) && !/, 0\\)$/.test(s.backgroundColor)) return s.backgroundColor;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  const all = [...document.querySelectorAll('svg text, dt, dd, h1, h2, h3, summary, button, li span, footer p')];
  return all.filter((t) => t.checkVisibility()).map((t) => {
    const r = t.getBoundingClientRect(), s = getComputedStyle(t);
    const [a, b] = [light(t instanceof SVGElement ? s.fill : s.color), light(ground(t, r))].sort((x, y) => y - x);
    return [t.textContent, (a + 0.05) / (b + 0.05)];
  });
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_stands_out(show: Any, theme: str) -> None:
    s = show(width=1600, height=6000, color_scheme=theme)
    s.page.locator("summary").click()
    found = s.page.evaluate(CONTRASTS)
    assert len(found) > 100
    assert [t for t in found if t[1] < 4.5] == []


def test_dark_is_dark_and_paper_is_white(show: Any) -> None:
    s = show(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert s.page.evaluate(ground) == "rgb(20, 23, 27)"
    s.page.emulate_media(media="print", color_scheme="dark")
    assert s.page.evaluate(ground) == "rgb(255, 255, 255)"


def test_paper_has_the_whole_pictures_and_nothing_to_press(show: Any) -> None:
    s = show(width=375)
    s.page.emulate_media(media="print")
    assert s.page.locator(".wide").is_visible()
    assert s.page.locator(".slim:visible, .nodes:visible, button:visible").count() == 0


def test_the_plan_of_one_process_is_one_lane(show: Any, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCENES, "plan", planned(bench.plan(flow())))
    s = show("plan")
    assert s.page.locator(".lane-name").all_inner_texts() == ["local"] or s.page.locator(".lane-name").count() == 1
    assert s.page.get_by_role("heading", name="Time").count() == 0
    s.thing("policy.generate").hover(position={"x": 60, "y": 12})
    assert "generate → rollout" in s.told.inner_text()
