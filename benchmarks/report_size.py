"""How large a report is and how long it takes: 87 problems x 10 attempts x 5 made-up models.

    python benchmarks/report_size.py              # writes to a temporary folder
    python benchmarks/report_size.py --keep DIR   # keeps the runs and the report there

Prints one line each: what, measured, the most that it should be. The time to open needs Chromium and playwright.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from synthetic_runs import write_runs

from pkb.reporting import files
from pkb.reporting.sheet import read_sheet

MODELS = ("alpha", "beta", "gamma", "delta", "epsilon")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)


def main() -> None:
    """Make the runs and the report, and measure."""
    kept = Path(sys.argv[sys.argv.index("--keep") + 1]) if "--keep" in sys.argv else None
    with tempfile.TemporaryDirectory() as scratch:
        folder = kept or Path(scratch)
        runs = write_runs(folder, models=MODELS, attempts=10)
        begin = time.perf_counter()
        sheets = [read_sheet(run) for run in runs]
        read = time.perf_counter()
        page = files.write(sheets, folder / "report.html")[0]
        written = time.perf_counter()
        print(f"{read - begin:7.2f} s               reading {sum(len(sheet.all) for sheet in sheets)} attempts")
        print(f"{written - read:7.2f} s               writing HTML, Markdown and CSV")
        print(f"{page.stat().st_size / 1e6:7.2f} MB (at most 15)  report.html")
        if CHROMIUM:
            print(f"{opening_s(page):7.2f} s  (at most 2)   opening it in headless Chromium, until idle")
        else:
            print("no Chromium on the PATH: opening was not measured")


def opening_s(page: Path) -> float:
    """Time from the request to a page that is laid out, painted and idle; the better of two."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        times = []
        for _ in range(2):
            tab = browser.new_page()
            begin = time.perf_counter()
            tab.goto(page.absolute().as_uri(), wait_until="load")
            tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestIdleCallback(done)))")
            times.append(time.perf_counter() - begin)
            tab.close()
        browser.close()
    return min(times)


if __name__ == "__main__":
    main()
