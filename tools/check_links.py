#!/usr/bin/env python3
"""Every link and picture of README.md, docs/, examples/ and the other pages at the top leads to a file of the repository, which one that git ignores is not,
and to a heading where it names one; every source file that they name exists.

usage: check_links.py
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def anchors(page):
    """Of the headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


# Configured by CMake, generated for each kernel, made by a command of the page, of llm.c.
FOREIGN = {"foveal/version.h", "config.cuh", "kernels/attention.c", "cudnn_att.cpp", "llmc/cudnn_att.cpp", "llmc/cudnn_att.h"}


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


def ignored(paths):
    """Those that a clone would not have. In no checkout of git, none are known."""
    names = "".join(f"{path.relative_to(ROOT)}\0" for path in paths if path.is_relative_to(ROOT))
    said = subprocess.run(["git", "check-ignore", "-z", "--stdin"], input=names, cwd=ROOT, capture_output=True, text=True)
    return {ROOT / name for name in said.stdout.split("\0") if name}


def main():
    wrong, known, files = [], sources(), {}
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
    for page in pages:
        whole = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        if "reference" not in page.parts:  # docstrings name files of their readers
            wrong += [f"{page.relative_to(ROOT)}: {path}: no such source file" for path in missing_sources(whole, known)]
        text = re.sub(r"`[^`\n]*`", "", whole)
        for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", text):
            if "://" in target:
                continue
            path = (page.parent / target).resolve() if target else page
            name = f"{page.relative_to(ROOT)}: {target}{'#' + anchor if anchor else ''}"
            files[name] = path
            if not path.exists():
                wrong.append(f"{name}: no such file")
            elif anchor and anchor not in anchors(path):
                wrong.append(f"{name}: no such heading")
    dead = ignored(files.values())
    wrong += [f"{name}: git ignores it, so a clone has no such file" for name, path in files.items() if path in dead]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"links of {len(pages)} pages lead somewhere, and the source files that they name exist")


if __name__ == "__main__":
    main()
