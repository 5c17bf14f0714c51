#!/usr/bin/env python3
"""Every link and picture of README.md, docs/ and the other pages at the top leads to a file, and to a heading where it names one; every source file
that they name exists.

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


FOREIGN = {"foveal/version.h", "config.cuh", "cudnn_att.cpp"}  # configured by CMake, generated for each kernel, of llm.c


def sources():
    """The ends of the paths of all source files: src/score/ops.h, score/ops.h, ops.h."""
    ends = set(FOREIGN)
    for folder in ("bench", "cli", "examples", "include", "python", "src", "tests", "tools"):
        for path in (ROOT / folder).rglob("*.*"):
            parts = path.relative_to(ROOT).parts
            ends |= {"/".join(parts[first:]) for first in range(len(parts))}
    return ends


def missing_sources(text, known):
    """Files that a page names, with a folder or without. NAME stands for a name that a reader chooses."""
    named = re.findall(r"(?<![\w/$.*-])((?:[\w-]+/)+[\w.-]+\.(?:cpp|h|cuh|cu|c|py|cmake|txt|jsonl)|[\w-]+\.(?:cpp|h|cuh|py))\b", text)
    return sorted({path for path in named if path not in known and "NAME" not in path})


def main():
    wrong, known = [], sources()
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        whole = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        if str(page.relative_to(ROOT)) not in GENERATED:
            wrong += [f"{page.relative_to(ROOT)}: {path}: no such source file" for path in missing_sources(whole, known)]
        text = re.sub(r"`[^`\n]*`", "", whole)
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
    print(f"links of {len(pages)} pages lead somewhere, and the source files that they name exist")


if __name__ == "__main__":
    main()
