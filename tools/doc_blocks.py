#!/usr/bin/env python3
"""Code blocks of the documentation, for the tests that run them.

usage: doc_blocks.py FOLDER    writes each complete C and C++ program (a block with a main) to FOLDER/PAGE_N.c or .cpp and prints the files
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pages():
    """README.md, CONTRIBUTING.md and the pages of docs/ and examples/, without lab notes and generated pages."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
    return [page for page in found if not {"lab", "report", "reference"} & set(page.relative_to(ROOT).parts)]


def blocks(page, *languages):
    """(line, text) of each block that is fenced as one of the languages; "" is a fence without any."""
    text = page.read_text()
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        if found[1] in languages:
            yield text.count("\n", 0, found.start()) + 2, found[2]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages():
        for language in ("c", "cpp"):
            for line, text in blocks(page, language):
                if re.search(r"^int main\(", text, re.M):
                    path = folder / f"{page.stem.replace('-', '_')}_{line}.{language}"
                    if not path.exists() or path.read_text() != text:
                        path.write_text(text)
                    print(path)


if __name__ == "__main__":
    main()
