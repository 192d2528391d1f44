"""The page in a browser: keyboard, screen readers, narrow windows and high contrast."""

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser import Visitor
from tests.support.browsers import Chromium
from tests.support.live import LiveServer
from tests.support.pages import Colours, adapt_with, focused, get, undo, violations

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_accessibility(
    visitor: Visitor, server: LiveServer, colours: Colours, broken: Path, width: int, scheme: str
) -> None:
    visitor.resize(width)
    visitor.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")

    def check(name: str) -> None:
        assert violations(visitor) == [], name
        assert visitor.run("return document.documentElement.scrollWidth") <= width, name

    check("empty")
    visitor.add_class("red " * 30, [*colours["red"], broken])
    visitor.add_class("green" * 30, colours["green"])
    visitor.add_class("blue", colours["blue"])
    visitor.click("#settings summary")
    visitor.choose("#horizon", "auto")
    visitor.write("#name", "a b")
    check("images")
    visitor.write("#name", f"everybody-{width}-{scheme}")
    visitor.adapt()
    visitor.wait(lambda: visitor.all("#facts"))
    check("quality")
    visitor.all(".confusion td button")[0].click()
    visitor.wait(lambda: visitor.all("#dialog img"))
    check("cell")
    visitor.click("#dialog [aria-label=Close]")
    visitor.sort([*colours["red"], broken])
    check("sort")
    visitor.step("use")
    visitor.wait(lambda: visitor.all("#versions li"))
    check("use")
    visitor.click("#go-classifiers")
    visitor.wait(lambda: visitor.all("#list-table tbody tr"))
    visitor.wait(lambda: "…" not in visitor.text("#list-table"))
    check("list")


def test_by_keyboard(visitor: Visitor, colours: Colours) -> None:
    """The focus is not lost where its element goes, and a change of view moves it there."""

    def focus() -> Any:
        return visitor.driver.switch_to.active_element

    visitor.one("body").send_keys(Keys.TAB)
    assert focus().text == "Skip to the content"
    visitor.one("#add-class").send_keys(Keys.ENTER)
    focus().send_keys("written at once", Keys.TAB)
    assert visitor.all("input.label")[2].get_property("value") == "written at once"
    visitor.all(".remove-class")[0].send_keys(Keys.ENTER)
    assert focus().get_attribute("aria-label") == "Add photos of class 1"
    visitor.add_class("red", colours["red"])
    remove = visitor.all(".thumbnails .remove")
    remove[0].send_keys(Keys.ENTER)
    assert focus().get_attribute("aria-label") == f"Remove {colours['red'][1].name}"
    visitor.one("[data-step=quality]").send_keys(Keys.ENTER)
    visitor.wait(lambda: visitor.one("#step-quality").is_displayed())
    assert focus().get_attribute("id") == "title"


def test_the_focus_outlives_what_it_was_on(visitor: Visitor, server: LiveServer, colours: Colours) -> None:
    """Where versions are deleted and promoted; and deleting is undone from there, not only at the end of the page."""
    for _ in range(3):
        adapt_with(server, colours, name="focus")

    def press(selector: str) -> None:
        visitor.wait(lambda: visitor.all(selector))
        visitor.one(selector).send_keys(Keys.ENTER)

    def gone(selector: str) -> None:
        visitor.wait(lambda: not visitor.all(selector))

    visitor.visit("/?view=classifiers", anew=False)
    press("[aria-label='Delete focus@3']")
    gone("[aria-label='Delete focus@3']")
    assert focused(visitor) == "focus@2"
    undo(visitor)
    visitor.wait(lambda: visitor.all("[aria-label='Delete focus@3']"))
    assert focused(visitor) == "focus@2"
    press("[aria-label='Promote focus@2']")
    gone("[aria-label='Promote focus@2']")
    assert focused(visitor) == "focus@2"
    visitor.visit("/?classifier=focus@3&step=use", anew=False)
    press("[aria-label='Promote focus@3']")
    gone("[aria-label='Promote focus@3']")
    assert focused(visitor) == "focus@3"
    press("[aria-label='Delete focus@1']")
    gone("[aria-label='Delete focus@1']")
    assert focused(visitor) == "focus@2"
    undo(visitor)
    visitor.wait(lambda: visitor.all("[aria-label='Delete focus@1']"))
    assert get(server, "classifiers/focus@1")["version"] == 1


def test_photos_to_sort_by_keyboard(visitor: Visitor, colours: Colours) -> None:
    """The focus stays among the tiles, and photos that were removed come back with their results."""
    visitor.make(colours)
    visitor.sort([path for paths in colours.values() for path in paths])

    def press(text: str) -> None:
        visitor.wait(lambda: visitor.one("#dialog").is_displayed())
        visitor.press(text, within="#dialog")

    names = visitor.texts("#results .file")
    visitor.all("#results .face")[0].send_keys(Keys.ENTER)
    press("Put it in this class")
    assert names[0] in focused(visitor)
    visitor.all("#results .face")[1].send_keys(Keys.ENTER)
    press("Remove from this list")
    assert names[2] in focused(visitor)
    undo(visitor)
    assert visitor.texts("#results .file") == names
    visitor.one("#clear").send_keys(Keys.ENTER)
    assert not visitor.one("#sorted").is_displayed()
    undo(visitor)
    assert visitor.texts("#results .file") == names
    assert len(visitor.all("#results .share")) == len(names)
    visitor.visit(anew=False)
    visitor.step("sort")
    assert visitor.texts("#results .file") == names


def test_a_result_is_announced_once(visitor: Visitor, colours: Colours) -> None:
    visitor.make(colours)
    visitor.step("sort")
    visitor.run(
        "window.said = []; new MutationObserver(() => { const text = document.querySelector('#announcer').textContent;"
        " if (text) window.said.push(text); }).observe(document.querySelector('#announcer'), {childList: true})"
    )
    visitor.sort([path for paths in colours.values() for path in paths])
    visitor.wait(lambda: visitor.run("return window.said.at(-1)?.startsWith('Sorted 9 photos')"))
    assert len(visitor.run("return window.said")) <= 2


def test_forced_colours_and_motion(visitor: Visitor, colours: Colours) -> None:
    visitor.make(colours)
    visitor.prefer(forced_colors="active", prefers_reduced_motion="reduce")
    style = (
        "const s = getComputedStyle(arguments[0]); return [s.backgroundColor, s.borderTopWidth, s.transitionDuration]"
    )
    fill, track = visitor.one(".part .fill"), visitor.one(".part .track")
    assert visitor.run(style, fill)[0] != visitor.run(style, track)[0]
    assert visitor.run(style, track)[1] == "1px"
    assert visitor.run(style, visitor.one("#show-key"))[2] == "0s"
    visitor.prefer()


def test_a_browser_of_2022_goes_from_step_to_step(visitor: Visitor) -> None:
    """It has no URLSearchParams.size."""
    visitor.run("delete URLSearchParams.prototype.size")
    for step in ("quality", "sort", "use"):
        visitor.step(step)
        assert visitor.run("return location.search") == f"?step={step}"


def test_an_older_browser_says_what_the_page_needs(visitor: Visitor) -> None:
    if not isinstance(visitor.browser, Chromium):
        pytest.skip("only Chromium's driver can take something from a page before its scripts run")
    assert not visitor.one("#too-old").is_displayed()
    script = visitor.browser.cdp(
        "Page.addScriptToEvaluateOnNewDocument", source="delete AbortSignal.prototype.throwIfAborted"
    )
    try:
        visitor.driver.refresh()
        visitor.wait(lambda: "needs Safari 15.4, Chrome or Edge 100, Firefox 98" in visitor.text("#too-old"))
    finally:
        visitor.browser.cdp("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])


SHIFTS = """
    window.shifts = [];
    new PerformanceObserver((list) => {
        for (const { value, hadRecentInput, sources } of list.getEntries()) {
            if (hadRecentInput) continue;
            window.shifts.push([value, ...sources.map(({ node }) => (node?.outerHTML ?? "").slice(0, 120))]);
        }
    }).observe({ type: "layout-shift", buffered: true });
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_the_layout_does_not_shift(visitor: Visitor, width: int) -> None:
    if visitor.browser.name != "chromium":
        pytest.skip("only Chromium measures layout shifts")
    visitor.resize(width)
    visitor.visit()
    visitor.run(SHIFTS)
    visitor.click("#starter")
    visitor.wait(lambda: len(visitor.all(".thumbnails img")) == 15)
    visitor.make()
    visitor.step("sort")
    visitor.wait_sorted()
    visitor.step("use")
    visitor.wait(lambda: visitor.all("#step-use pre"))
    visitor.click("#go-classifiers")
    visitor.wait(lambda: visitor.all("#list-table tbody tr"))
    visitor.wait(lambda: "…" not in visitor.text("#list-table"))
    visitor.click("#list-table tbody a")
    visitor.wait(lambda: visitor.one("#step-quality").is_displayed() and visitor.all("#facts"))
    shifts = visitor.run("return window.shifts")
    assert sum(value for value, *_ in shifts) < 0.01, shifts


def test_on_a_phone_the_classes_come_first(visitor: Visitor) -> None:
    visitor.resize(390, 844)
    place = "return arguments[0].getBoundingClientRect().top"
    assert visitor.run(place, visitor.one(".class")) < visitor.run(place, visitor.one("#name"))
    assert visitor.run(place, visitor.one(".class")) < 844


@pytest.mark.parametrize("width", [1280, 390])
def test_text_of_twice_the_usual_size(visitor: Visitor, colours: Colours, width: int) -> None:
    """As where the user has set a larger font in the browser."""
    visitor.resize(width)
    visitor.make(colours)
    visitor.run("document.documentElement.style.fontSize = '32px'")
    assert visitor.run("return getComputedStyle(arguments[0]).fontSize", visitor.one("#worth")) == "32px"
    height = "return arguments[0].getBoundingClientRect().height"
    assert max(visitor.run(height, link) for link in visitor.all(".bar nav a")) < 100, "no word is broken"
    for step in ("images", "quality", "sort", "use"):
        visitor.step(step)
        assert visitor.run("return document.documentElement.scrollWidth") <= width, step


def test_a_printed_report_has_no_controls(visitor: Visitor, colours: Colours) -> None:
    if not isinstance(visitor.browser, Chromium):
        pytest.skip("printing is emulated in Chromium")
    visitor.make(colours)
    visitor.browser.cdp("Emulation.setEmulatedMedia", media="print")
    try:
        assert visitor.one("#accuracy").is_displayed()
        assert [name for name in (".bar", "#steps", "#start-over", ".zoom") if visitor.one(name).is_displayed()] == []
        style = "return getComputedStyle(arguments[0]).printColorAdjust"
        assert visitor.run(style, visitor.one(".bars .fill")) == "exact"
    finally:
        visitor.browser.cdp("Emulation.setEmulatedMedia", media="")


def in_sight(visitor: Visitor, selector: str) -> bool:
    script = "const box = arguments[0].getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight"
    return visitor.run(script, visitor.one(selector))


def test_errors_are_seen_from_the_end_of_a_long_page(visitor: Visitor, colours: Colours) -> None:
    visitor.resize(1280, 500)
    visitor.add_classes(colours)
    visitor.run("window.fetch = () => Promise.reject(new TypeError('no network'))")
    visitor.write("#name", "away")
    visitor.click("#adapt")
    visitor.wait(lambda: "tell whoever runs the server. Waiting" in visitor.text("#adapt-doing"))
    visitor.wait(lambda: "did not answer" in visitor.messages())
    assert in_sight(visitor, ".message")
    assert not in_sight(visitor, "#adapt")
    visitor.run("window.fetch = () => Promise.resolve(new Response('{}', { status: 401 }))")
    visitor.adapt()
    visitor.wait(lambda: in_sight(visitor, "#key"))
