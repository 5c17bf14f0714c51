"""The Python blocks of the documentation run as they stand, page by page, each page in one namespace."""

import importlib.util
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import doc_blocks  # noqa: E402

PAGES = [page for page in doc_blocks.pages() if any(doc_blocks.blocks(page, "python"))]


def test_pages_are_found():
    assert len(PAGES) >= 10


def test_every_environment_variable_has_its_row():
    page = (ROOT / "docs/environment.md").read_text()
    read = set()
    for folder, kinds in (("src", ("*.cpp", "*.h")), ("python", ("*.cpp", "*.h", "*.py"))):
        for path in (found for kind in kinds for found in (ROOT / folder).rglob(kind)):
            text = path.read_text()
            if "getenv(" in text or "os.environ" in text:
                read |= set(re.findall(r'"(FOVEAL_[A-Z_]+)"', text))
    assert len(read) >= 5 and not [name for name in sorted(read) if f"| `{name}` |" not in page]


def test_every_switch_of_cmake_and_every_extra_of_pip_is_documented():
    switches = re.findall(r"^ *(?:option|set)\((\w+) .*(?:CACHE STRING|\bON\)|\bOFF\)|\$\{PROJECT_IS_TOP_LEVEL\}\))", (ROOT / "CMakeLists.txt").read_text(), re.M)
    page = (ROOT / "docs/start/c-and-cpp.md").read_text()
    assert len(switches) >= 12
    assert not [name for name in switches if name.startswith(("FOVEAL_", "BUILD_")) and f"`{name}`" not in page]
    (extras,) = re.findall(r"^\[project.optional-dependencies\]\n((?:\w+ = .*\n)+)", (ROOT / "pyproject.toml").read_text(), re.M)
    named = set(re.findall(r"\.\[(\w+)\]", (ROOT / "docs/python.md").read_text() + (ROOT / "README.md").read_text()))
    assert named == set(re.findall(r"^(\w+) =", extras, re.M)) >= {"numpy", "torch", "jax"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page):
    blocks = list(doc_blocks.blocks(page, "python"))
    for package in ("torch", "jax", "transformers"):
        if any(f"import {package}" in text or f"from {package}" in text for _, text in blocks):
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed")
    namespace = {"__name__": page.stem}
    for line, text in blocks:
        # Line numbers of tracebacks are those of the page.
        exec(compile("\n" * (line - 1) + text, str(page), "exec"), namespace)
