"""The documentation site in a browser. Needs the built site, selenium, Chromium and its driver: ``make test-site``."""

import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed; run make test-site")
from selenium.webdriver.chrome.service import Service  # noqa: E402

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
DRIVER = shutil.which("chromedriver")
NARROW = 400  # pixels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        DRIVER is None, reason="chromedriver is not installed (Debian: apt-get install chromium-driver)"
    ),
    pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="the site is not built; run make docs"),
]


@pytest.fixture(scope="module")
def address():
    """Serves the site."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(flag)
    found = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield found
    found.quit()


def test_every_page_on_a_narrow_screen(browser, address):
    """Images load, the page does not scroll sideways, and code scrolls in its block, in letters that can be read."""
    pages = sorted(SITE.rglob("*.html"))
    assert len(pages) > 30
    browser.set_window_size(NARROW, 900)
    for page in pages:
        browser.get(f"{address}/{page.relative_to(SITE)}")
        broken, overhang, smallest = browser.execute_script(
            "return [[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src),"
            "document.documentElement.scrollWidth - document.documentElement.clientWidth,"
            "Math.min(99, ...[...document.querySelectorAll('pre code')].map(c => parseFloat(getComputedStyle(c).fontSize)))]"
        )
        assert not broken and overhang <= 0 and smallest >= 12, (page.name, broken, overhang, smallest)
