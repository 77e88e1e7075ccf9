"""The documentation site in a browser. Needs the built site, selenium, Chromium and its driver: ``make test-site``."""

import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed; run make test-site")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
DRIVER = shutil.which("chromedriver")
NARROW, WIDE = 400, 1200  # pixels
CONTRAST = 4.5  # of text, in WCAG 2.1, level AA
# relative luminance of a colour, and the ratio of two
RATIO = """
const light = text => {
  const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = text.match(/[\\d.]+/g).map(v => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const style = getComputedStyle(document.body), [a, b] = [light(style.color), light(style.backgroundColor)];
return [style.backgroundColor, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        DRIVER is None, reason="chromedriver is not installed (Debian: apt-get install chromium-driver)"
    ),
    pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="the site is not built; run make docs"),
]


@pytest.fixture(scope="module")
def address():
    """Serves the site; a browser does not search in pages from the disk."""
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


def test_search_finds_a_flag(browser, address):
    browser.set_window_size(WIDE, 900)
    browser.get(f"{address}/index.html")
    box = browser.find_element(By.CSS_SELECTOR, ".md-search__input")
    box.click()
    box.send_keys("temperature")
    links = (By.CSS_SELECTOR, ".md-search-result__list a")
    found = WebDriverWait(browser, 30).until(lambda page: page.find_elements(*links))
    assert any("objectives" in link.get_attribute("href") for link in found)
    box.clear()
    box.send_keys("xqzvwk")
    WebDriverWait(browser, 30).until(lambda page: not page.find_elements(*links))


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


def test_both_themes_can_be_read(browser, address):
    colours = set()
    for theme in ("light", "dark"):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        )
        browser.get(f"{address}/getting-started.html")
        browser.execute_script("localStorage.clear()")
        browser.refresh()
        background, contrast = browser.execute_script(RATIO)
        colours.add(background)
        assert contrast >= CONTRAST, (theme, background, contrast)
    assert len(colours) == 2, colours
