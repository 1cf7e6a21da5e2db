"""The page in a real browser: drawn without a word in the console or a byte from the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.report import write_report

from .replay import results
from .test_page import HOSTILE

FIGURES = ["pool", "map", "load", "blocks", "latency"]
HOVERED = "() => [...document.querySelectorAll('.hoverlayer text')].map(e => e.textContent).join(' ')"


class Visit:
    """A page opened offline, with everything it said and asked for."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]", timeout=30_000)

    def until(self, expression: str) -> None:
        """Waits for an expression to hold (the page's policy forbids Playwright's own way, which is eval)."""
        for _ in range(100):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(50)
        pytest.fail(f"never true: {expression}")

    def hover(self, figure: str, x: float, y: float) -> str:
        """What hovering at these fractions of a figure's first panel shows."""
        place = self.page.locator(f"#plot-{figure} .nsewdrag").first
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        self.page.mouse.move(box["x"] + box["width"] * x - 2, box["y"] + box["height"] * y)
        self.page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y, steps=3)
        self.until(f"({HOVERED})() !== ''")
        return str(self.page.evaluate(HOVERED))


@pytest.fixture(scope="module")
def desk(browser: Any, page_url: str) -> Any:
    visit = Visit(browser, page_url, viewport={"width": 1200, "height": 900})
    yield visit
    visit.context.close()


def test_it_opens_silently_and_asks_nobody(desk: Visit, page_url: str) -> None:
    assert desk.said == []
    assert [url for url in desk.asked if not url.startswith(("data:", "blob:"))] == [page_url]


def test_every_figure_is_drawn(desk: Visit) -> None:
    assert desk.page.eval_on_selector_all(".plot", "all => all.map(e => e.dataset.figure)") == FIGURES
    for figure in FIGURES:
        marks = ".heatmaplayer image" if figure == "map" else ".scatterlayer .trace path"
        assert desk.page.locator(f"#plot-{figure} {marks}").count() >= 2


def test_hovering_the_map_names_the_request(desk: Visit) -> None:
    assert "prompt" in desk.hover("map", 0.2, 0.5)


def test_hovering_the_pool_gives_the_shares(desk: Visit) -> None:
    text = desk.hover("pool", 0.1, 0.5)
    assert "used: holds live tokens" in text
    assert "peak allocated" in text


def test_the_legend_hides_and_shows_a_run(desk: Visit) -> None:
    lines = "() => document.querySelectorAll('#plot-load .scatterlayer .trace').length"
    before = desk.page.evaluate(lines)
    toggle = desk.page.locator("#plot-load .legendtoggle").first
    toggle.scroll_into_view_if_needed()
    toggle.click()
    desk.until(f"({lines})() < {before}")
    desk.page.wait_for_timeout(400)  # plotly takes a second click within 300 ms for a double click
    toggle.click()
    desk.until(f"({lines})() === {before}")


def test_the_flags_can_be_copied_and_tables_opened_by_keyboard(desk: Visit) -> None:
    desk.page.locator("[data-copy]").focus()
    desk.page.keyboard.press("Enter")
    desk.page.wait_for_selector("[data-copy]:text('Copied')", timeout=2_000)
    summary = desk.page.locator("#latency details summary")
    summary.focus()
    desk.page.keyboard.press("Enter")
    assert desk.page.locator("#latency details table").is_visible()
    assert desk.said == []


def test_saving_gives_the_summary_itself(desk: Visit, outcome: tuple[Any, ...]) -> None:
    import json

    with desk.page.expect_download() as download:
        desk.page.locator("[data-save]").click()
    assert json.loads(Path(download.value.path()).read_text()) == json.loads(json.dumps(outcome[0]))


def test_a_phone_scrolls_only_downward(browser: Any, page_url: str) -> None:
    visit = Visit(browser, page_url, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    visit.page.evaluate("document.querySelectorAll('details').forEach(each => (each.open = true))")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    visit.context.close()


def test_dark_mode_is_dark_and_legible(browser: Any, page_url: str) -> None:
    visit = Visit(browser, page_url, color_scheme="dark")
    contrast = visit.page.evaluate(CONTRAST)
    assert contrast["paper"] < 0.05
    assert min(contrast["ratios"].values()) >= 4.5, contrast
    assert visit.page.evaluate("document.querySelector('#plot-load .ytick text').style.fill") == "rgb(155, 165, 174)"
    visit.context.close()


def test_light_mode_is_legible(desk: Visit) -> None:
    contrast = desk.page.evaluate(CONTRAST)
    assert min(contrast["ratios"].values()) >= 4.5, contrast


def test_print_is_light_and_no_wider_than_the_paper(browser: Any, page_url: str, tmp_path: Path) -> None:
    visit = Visit(browser, page_url, color_scheme="dark")
    visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    visit.until("document.querySelector('#plot-latency .main-svg').clientWidth === 680")
    visit.page.emulate_media(media="print")
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert visit.page.evaluate("document.querySelector('#plot-load .ytick text').style.fill") == "rgb(90, 100, 110)"
    assert not visit.page.locator("[data-copy]").is_visible()
    visit.page.pdf(path=str(tmp_path / "p.pdf"), prefer_css_page_size=True)
    assert (tmp_path / "p.pdf").stat().st_size > 20_000
    visit.context.close()


def test_hostile_names_stay_text_in_the_browser(browser: Any, tmp_path: Path) -> None:
    summary, requests, timeline, memory_map = results(count=80)
    requests["id"] = [HOSTILE[row % len(HOSTILE)] for row in range(len(requests))]
    for frame in (requests, timeline, memory_map):
        frame["run"] = frame["run"].replace({"base": HOSTILE[0], "contiguous": HOSTILE[4]})
    for run, name in zip(summary["runs"], (HOSTILE[0], HOSTILE[4]), strict=True):
        run["name"] = name
    summary["scenario"]["model"] = HOSTILE[7]
    path = write_report(tmp_path / "hostile.html", summary, requests, timeline, memory_map)
    visit = Visit(browser, path.as_uri(), viewport={"width": 390, "height": 844})
    assert visit.page.evaluate("window.hacked") is None
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert HOSTILE[0] in visit.page.inner_text("#answer")
    assert HOSTILE[0] in visit.page.evaluate("document.querySelector('#plot-load .legendtext').textContent")
    assert visit.page.locator(".plot a").count() == 0
    assert visit.said == []
    visit.context.close()


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    canvas.fillStyle = style.getPropertyValue("--" + name).trim();
    const hex = canvas.fillStyle;
    const part = (at) => { const v = parseInt(hex.slice(at, at + 2), 16) / 255;
      return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
  };
  const paper = light("paper"), ratios = {};
  for (const name of ["ink", "muted", "accent", "good", "bad"]) {
    const [a, b] = [light(name), paper].sort((x, y) => y - x);
    ratios[name] = (a + 0.05) / (b + 0.05);
  }
  return { paper, ratios };
}"""
