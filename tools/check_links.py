#!/usr/bin/env python3
"""Every link and picture of README.md, docs/ and the other pages at the top leads to a file, and to a heading where it names one.

usage: check_links.py
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GENERATED = {"docs/reference/python.md", "docs/reference/cpp.md", "docs/reference/c.md"}  # written by ./dev docs


def anchors(page):
    """Of the headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def main():
    wrong = []
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
        for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", text):
            if "://" in target:
                continue
            path = (page.parent / target).resolve() if target else page
            name = f"{page.relative_to(ROOT)}: {target}{'#' + anchor if anchor else ''}"
            if path.is_relative_to(ROOT) and str(path.relative_to(ROOT)) in GENERATED:
                continue
            if not path.exists():
                wrong.append(f"{name}: no such file")
            elif anchor and anchor not in anchors(path):
                wrong.append(f"{name}: no such heading")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"links of {len(pages)} pages lead somewhere")


if __name__ == "__main__":
    main()
