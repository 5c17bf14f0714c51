"""Markdown tables, plots and one self-contained HTML page, all from result files; figures are never typed. Of what `run`, `overhead` and `shares` wrote; the
tables of other suites stand in docs/, by tools/write_tables.py.

    foveal-bench report bench/results/*.jsonl
"""

from __future__ import annotations

import argparse
import base64
import html
import pathlib
from typing import Any

from . import plots
from .results import load
from .tables import summary, tables

_HOW = "Each suite ran in one process, contenders interleaved, every answer checked before it was timed; geometric means over the cases."


def _page(text: str, figures: list[tuple[str, pathlib.Path]]) -> str:
    """One HTML file that needs nothing else: the first table, the plots inline, the other tables."""
    import markdown  # only here: tools/write_tables.py needs nothing but Python

    body = markdown.markdown(text, extensions=["tables"])
    end = body.index("</table>") + len("</table>")
    images = []
    for title, path in figures:
        data = base64.b64encode(path.read_bytes()).decode()
        images.append(f'<h3>{html.escape(title)}</h3><img alt="{html.escape(title)}" src="data:image/png;base64,{data}">')
    style = (
        "body{font:15px system-ui;margin:2em auto;max-width:1280px;padding:0 1em}table{border-collapse:collapse;font-size:13px}"
        "td,th{padding:2px 9px;border:1px solid #ccc}img{max-width:100%}"
    )
    head = f"<!doctype html><meta charset=utf-8><link rel=icon href='data:,'><title>foveal beside its rivals</title><style>{style}</style><h1>foveal beside its rivals</h1>"
    return "\n".join([head, body[:end], *images, body[end:]]) + "\n"


def results_page(rows: list[dict[str, Any]], pictures: list[str]) -> str:
    text = "\n".join(pictures)
    return f"# foveal beside others\n\n{_HOW}\n\n{summary(rows)}\n\n{text}\n\n{tables(rows)}"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    parser.set_defaults(output=pathlib.Path("docs/report"))


def main(options: argparse.Namespace) -> None:
    """Writes results.md (the summary, the plots, all tables), its pictures, and index.html, which holds them all."""
    rows, output = load(options.results), options.output
    output.mkdir(parents=True, exist_ok=True)
    figures = plots.draw(rows, output)
    pictures = [f"![{title}]({path.name})" for title, path in figures if path.name.startswith(("models", "ratio", "scores"))]
    (output / "results.md").write_text(results_page(rows, pictures))
    (output / "index.html").write_text(_page(f"{summary(rows)}\n\n{tables(rows)}", figures))
    print(f"wrote {output}/results.md, index.html and {len(figures)} plots (PNG and SVG)")
