#!/usr/bin/env python3
"""Checks the built documentation in a headless browser: every page loads without errors and external requests, every image shows,
every link leads to a page and to a place in it where it names one, and the search finds what it is asked for.

usage: check_site.py SITE
"""
import contextlib
import functools
import http.server
import pathlib
import sys
import threading
import urllib.parse

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

WORDS = ("dropout", "split-KV", "block_table", "softcap", "CUDA graph")  # a reader of this field looks for them

FACTS = """
const done = arguments[arguments.length - 1];
const pictures = Array.from(document.images);
pictures.forEach(picture => picture.loading = 'eager');
Promise.all(pictures.map(picture => picture.decode().then(() => '', () => picture.src))).then(broken => done({
  broken: broken.filter(source => source),
  links: Array.from(document.querySelectorAll('a[href]')).map(link => link.href),
  ids: Array.from(document.querySelectorAll('[id]')).map(element => element.id),
  fetched: performance.getEntriesByType('resource').map(entry => entry.name),
}));
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


@contextlib.contextmanager
def browser():
    options = webdriver.ChromeOptions()
    for switch in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    driver.set_script_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


def read(driver, home, pages):
    """The facts of each page by its path, and the errors of the pages themselves."""
    facts, wrong = {}, []
    for page in pages:
        driver.get(home + page)
        facts[page] = driver.execute_async_script(FACTS)
        wrong += [f"{page}: {entry['message']}" for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        wrong += [f"{page}: the picture {source} does not show" for source in facts[page]["broken"]]
        wrong += [f"{page}: fetches {name}" for name in facts[page]["fetched"] if not name.startswith((home, "data:", "blob:"))]
    return facts, wrong


def dead_links(home, facts, folder):
    for page, held in facts.items():
        for link in sorted(set(held["links"])):
            if not link.startswith(home):
                continue
            path, _, place = link[len(home) :].partition("#")
            path, place = urllib.parse.unquote(path), urllib.parse.unquote(place)
            path = path + "index.html" if path == "" or path.endswith("/") else path
            if not (folder / path).is_file():
                yield f"{page}: {link[len(home):]}: no such page"
            elif place and path in facts and place not in facts[path]["ids"] and not place.startswith("__"):
                yield f"{page}: {link[len(home):]}: no such place in the page"


def failed_searches(driver, home):
    for word in WORDS:
        driver.get(home)
        field = driver.find_element(By.CSS_SELECTOR, "input[name=query]")
        driver.execute_script("arguments[0].focus()", field)
        field.send_keys(word)
        try:
            WebDriverWait(driver, 20).until(lambda d: d.find_elements(By.CSS_SELECTOR, ".md-search-result__item a"))
        except Exception:  # of the driver, when the time is up
            yield f"search: nothing found for {word}"


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    pages = [str(page.relative_to(folder)) for page in sorted(folder.rglob("*.html")) if page.name != "404.html"]
    with served(folder) as home, browser() as driver:
        facts, wrong = read(driver, home, pages)
        wrong += dead_links(home, facts, folder)
        wrong += failed_searches(driver, home)
    links = sum(len(held["links"]) for held in facts.values())
    print(f"{len(pages)} pages, {links} links, {len(WORDS)} searches, {len(wrong)} wrong")
    if wrong or len(pages) < 25:
        sys.exit("\n".join(wrong) or "fewer pages than the site has")


if __name__ == "__main__":
    main()
