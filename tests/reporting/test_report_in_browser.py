"""The report in headless Chromium, offline: it opens without an error, and its filters do what they say."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pkb.records.attempt import Attempt
from pkb.records.run import Run
from pkb.reporting import files
from pkb.reporting.sheet import read_sheet

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
SECTIONS = ("headline", "curves", "failures", "map", "light", "splits", "problems")
PROBLEMS = ("allreduce", "allgather", "gemm_allreduce")


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        # A container has no room in /dev/shm and no user that Chromium's own sandbox could become.
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def report(make_run: Callable[..., Run], make_attempt: Callable[..., Attempt], write_run, tmp_path: Path) -> Path:
    """Two runs: the first is fast at allreduce and solves allgather, the second is fast at gemm_allreduce alone."""
    first = [
        make_attempt(speedup=1.8, problem="allreduce"),
        make_attempt("hung", problem="allreduce", number=1),
        make_attempt(speedup=0.7, problem="allgather"),
        make_attempt("wrong", cause="race", problem="gemm_allreduce", detail="</script><b>late</b>"),
    ]
    second = [
        make_attempt("no_code", problem="allreduce"),
        make_attempt(speedup=2.0, problem="allgather", library=True),
        make_attempt(speedup=1.2, problem="gemm_allreduce"),
    ]
    runs = [
        write_run(make_run(PROBLEMS, name="first", attempts=2), first),
        write_run(make_run(PROBLEMS, name="second", attempts=1), second),
    ]
    return files.write([read_sheet(run) for run in runs], tmp_path / "report.html")[0]


@pytest.fixture
def page(browser: sync_api.Browser, report: Path) -> Iterator[sync_api.Page]:
    """The report, opened offline; at its end nothing may have gone wrong."""
    context = browser.new_context(viewport={"width": 1366, "height": 900}, offline=True)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.goto(report.as_uri())
    yield page
    context.close()
    assert wrong == []


def shown(page: sync_api.Page) -> list[str]:
    """Problems whose part and row are visible."""
    parts = page.eval_on_selector_all("details.problem:not([hidden])", "parts => parts.map(part => part.id.slice(2))")
    rows = page.eval_on_selector_all("tr.row:not([hidden])", "rows => rows.map(row => row.dataset.problem)")
    assert parts == rows
    assert page.inner_text("#shown") == f"{len(parts)} of {len(PROBLEMS)} problems"
    return parts


def test_all_sections_are_there_and_filled(page: sync_api.Page) -> None:
    for section in SECTIONS:
        assert page.locator(f"#{section}").bounding_box()["height"] > 60
    assert page.locator("#curves svg").count() == 2
    assert page.locator("#light svg a").count() == 3
    assert page.locator("tr.row td").count() == 3 * 3
    assert page.locator("#headline tbody tr").count() == 2 * 2 + 1
    assert shown(page) == list(PROBLEMS)


@pytest.mark.parametrize(
    ("field", "value", "left"),
    [
        ("#find", "gather", ["allgather"]),
        ("#find", "GEMM", ["gemm_allreduce"]),
        ("#group", "group0", ["allgather"]),
        ("#parallelism", "sp", ["allreduce", "gemm_allreduce"]),
        ("#outcome", "fast", ["allreduce", "gemm_allreduce"]),
        ("#outcome", "solved", ["allreduce", "allgather", "gemm_allreduce"]),
        ("#outcome", "mixed", ["allreduce", "allgather", "gemm_allreduce"]),
        ("#outcome", "unsolved", []),
    ],
)
def test_filters_leave_what_fits(page: sync_api.Page, field: str, value: str, left: list[str]) -> None:
    if field == "#find":
        page.fill(field, value)
    else:
        page.select_option(field, value)
    assert shown(page) == left
    assert page.locator("#light svg a:not([hidden])").count() == len(left)


def test_a_run_that_is_unticked_disappears_from_charts_maps_and_outcomes(page: sync_api.Page) -> None:
    page.uncheck(".pick-run[value='0']")
    assert page.locator(".curve:not([hidden])").count() == page.locator(".curve[data-run='1']").count() == 3
    assert page.locator("tr.row td:visible").count() == 3
    assert page.locator("#light svg a:not([hidden])").count() == 1
    page.select_option("#outcome", "unsolved")
    assert shown(page) == ["allreduce", "allgather"]


def test_a_row_leads_to_its_problem_with_explanation_times_and_code(page: sync_api.Page) -> None:
    page.click("tr.row a >> text=allreduce >> nth=0")
    part = page.locator("#p-allreduce")
    assert part.get_attribute("open") is not None
    assert "55.6 us" in part.inner_text() and "1.80x" in part.inner_text()
    part.locator("details.code summary").first.click()
    assert part.locator("pre").first.inner_text() == "def solution(): ...\n"
    page.click("tr.row a >> text=gemm_allreduce")
    assert "</script><b>late</b>" in page.locator("#p-gemm_allreduce").inner_text()


@pytest.mark.parametrize("width", [390, 1366])
def test_the_page_fits_the_screen(page: sync_api.Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.evaluate("() => document.querySelectorAll('details').forEach(part => part.open = true)")
    assert page.evaluate("() => document.documentElement.scrollWidth") == width


def test_light_and_dark(page: sync_api.Page) -> None:
    def background() -> str:
        return page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    light = background()
    page.emulate_media(color_scheme="dark")
    dark = background()
    assert light == "rgb(255, 255, 255)" and dark != light
    page.click("#theme")
    assert background() == light
    page.click("#theme")
    assert background() == dark
