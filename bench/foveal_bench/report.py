"""`foveal-bench report`: markdown tables, plots and one self-contained HTML page, all from result files; figures are never typed."""

from __future__ import annotations

import base64
import collections
import html
import pathlib
import re
from typing import Any

from . import overhead, plots, shares
from .results import OURS, best_rival, cases, geomean, load, ratio

_HOW = "Each suite ran in one process, contenders interleaved, every answer checked before it was timed; geometric means over the cases."


def _where(machine: str, threads: Any) -> str:
    name = machine.split(" (")[0]
    return f"{name}, {threads} thread{'s' if threads != 1 else ''}" if threads else name


def _origin(row: dict[str, Any]) -> str:
    """Where a row can be made again."""
    return f"torch {row['torch']}, commit {row['commit']}, `{row['command']}`"


def summary(rows: list[dict[str, Any]]) -> str:
    """One line for each suite, machine, pass and type: how foveal compares with the best rival of each case."""
    groups: dict[Any, list[tuple[float, str, str]]] = collections.defaultdict(list)
    commits: dict[Any, set[str]] = collections.defaultdict(set)
    for (machine, threads, suite, case), group in cases(rows).items():
        rival = best_rival(group)
        if rival:
            name, dtype = case.split()[:2]
            key = (_where(machine, threads), suite, name, dtype)
            groups[key].append((ratio(group), rival, case))
            commits[key].add(group[OURS]["commit"][:7])
    lines = ["| machine | suite | pass | type | cases | times the best rival's speed | least | best rival, most often | commits |", "|---|---|---|---|---|---|---|---|---|"]
    for (where, suite, name, dtype), found in sorted(groups.items()):
        values = [value for value, _, _ in found]
        least = min(found)
        rival, count = collections.Counter(rival for _, rival, _ in found).most_common(1)[0]
        lines.append(
            f"| {where} | {suite} | {name} | {dtype} | {len(values)} | {geomean(values):.2f} | {least[0]:.2f} ({' '.join(least[2].split()[2:])}) "
            f"| {rival} ({count}) | {', '.join(sorted(commits[where, suite, name, dtype]))} |"
        )
    return "\n".join(lines)


def _speeds(key: tuple[str, str, Any], group: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Every contender's rate, case by case."""
    names = sorted({who for contenders in group.values() for who, row in contenders.items() if "ms" in row}, key=lambda who: (who != OURS, who))
    terascale = any(row.get("gflops", 0) > 20000 for contenders in group.values() for row in contenders.values())
    scale, unit, digits = (1000, "TFLOP/s", 0) if terascale else (1, "GFLOP/s", 1 if max(c[OURS]["gflops"] for c in group.values()) < 100 else 0)
    last = max((contenders[OURS] for contenders in group.values()), key=lambda row: row["date"])
    lines = [f"**{key[0]}** on {key[1]}{f', {key[2]} threads' if key[2] else ''}, {unit} ({_origin(last)})\n"]
    lines.append("| case | " + " | ".join(names) + " | to the best rival |")
    lines.append("|---" * (len(names) + 2) + "|")
    order = sorted(group, key=lambda case: (plots.words(case)[0], int(plots.words(case)[1].split(":")[0])))
    for case in order:
        contenders = group[case]
        cells = [f"{contenders[who]['gflops'] / scale:.{digits}f}" if "gflops" in contenders.get(who, {}) else "" for who in names]
        lines.append(f"| {case} | " + " | ".join(cells) + f" | {f'{ratio(contenders):.2f}' if best_rival(contenders) else ''} |")
    refused = sorted({(who, row["refused"]) for contenders in group.values() for who, row in contenders.items() if "refused" in row})
    lines += ["", *(f"- {who}: {reason}" for who, reason in refused), ""] if refused else [""]
    return lines


def _scores(key: tuple[str, str, Any], group: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Times of programmed and trained scores, with what else a caller pays."""
    last = max((contenders[OURS] for contenders in group.values()), key=lambda row: row["date"])
    lines = [
        f"**{key[0]}** on {key[1]}{f', {key[2]} threads' if key[2] else ''}, ms ({_origin(last)}); - : refused or failed. "
        "Call: wall time of one call that is waited for. First: seconds of the first, its compilation included. Memory: MiB at the peak.\n",
        "| case | foveal | flex | flex / foveal | foveal call | flex call | foveal first | flex first | foveal memory | flex memory |",
        "|---" * 10 + "|",
    ]
    for case, contenders in group.items():
        ours, flex = contenders[OURS], contenders.get("flex", {})

        def cell(row: dict[str, Any], field: str, form: str, scale: float = 1.0) -> str:
            return form.format(row[field] / scale) if row.get(field) is not None and "ms" in row else "-"

        factor = f"{flex['ms'] / ours['ms']:.2f}" if "ms" in flex else "-"
        pairs = [cell(row, field, form, scale) for field, form, scale in (("call_ms", "{:.2f}", 1), ("first_call_s", "{:.2f}", 1), ("peak_bytes", "{:.0f}", 2**20)) for row in (ours, flex)]
        lines.append(f"| {case} | {ours['ms']:.2f} | {cell(flex, 'ms', '{:.2f}')} | {factor} | " + " | ".join(pairs) + " |")
    return [*lines, ""]


def tables(rows: list[dict[str, Any]]) -> str:
    parts = []
    for key, group in sorted(plots.by_suite(rows).items(), key=str):
        parts += _scores(key, group) if any("score=" in case for case in group) else _speeds(key, group)
    return "\n".join([*parts, *overhead.tables(rows), *shares.tables(rows)])


def _page(markdown: str, figures: list[tuple[str, pathlib.Path]]) -> str:
    """One HTML file that needs nothing else: the plots inline, then the tables."""
    body, table = [], False
    for line in markdown.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        if cells and set("".join(cells)) <= {"-"} and "" not in cells:
            continue
        if cells and not table:
            body.append("<table>")
        if not cells and table:
            body.append("</table>")
        if cells:
            tag = "td" if table else "th"
            body.append("<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>")
        elif line:
            text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(line)))
            body.append(f"<p>{text}</p>")
        table = cells is not None
    if table:
        body.append("</table>")
    first_table = body.index("</table>") + 1
    images = []
    for title, path in figures:
        data = base64.b64encode(path.read_bytes()).decode()
        images.append(f'<h3>{html.escape(title)}</h3><img alt="{html.escape(title)}" src="data:image/png;base64,{data}">')
    style = (
        "body{font:15px system-ui;margin:2em auto;max-width:1280px;padding:0 1em}table{border-collapse:collapse;font-size:13px}"
        "td,th{padding:2px 9px;border:1px solid #ccc}img{max-width:100%}"
    )
    head = f"<!doctype html><meta charset=utf-8><title>foveal beside its rivals</title><style>{style}</style><h1>foveal beside its rivals</h1>"
    return "\n".join([head, *body[:first_table], *images, *body[first_table:]]) + "\n"


def report(paths: list[pathlib.Path], output: pathlib.Path) -> None:
    """Writes results.md (the summary, the plots, all tables), its pictures, and index.html, which holds them all."""
    rows = load(paths)
    output.mkdir(parents=True, exist_ok=True)
    figures = plots.draw(rows, output)
    pictures = "\n".join(f"![{title}]({path.name})" for title, path in figures if path.name.startswith(("ratio", "scores")))
    (output / "results.md").write_text(f"# foveal beside others\n\n{_HOW}\n\n{summary(rows)}\n\n{pictures}\n\n{tables(rows)}")
    (output / "index.html").write_text(_page(f"{summary(rows)}\n\n{tables(rows)}", figures))
    print(f"wrote {output}/results.md, index.html and {len(figures)} plots (PNG and SVG)")
