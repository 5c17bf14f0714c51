"""The report's figures, each from result rows alone: PNG for pages, SVG beside it."""

from __future__ import annotations

import collections
import math
import pathlib
import re
from typing import Any

from .case import parse
from .results import OURS, best_rival, cases, ratio

_COLOURS = {
    OURS: "#d1495b", "torch_sdpa": "#30638e", "cudnn": "#30638e", "fa2": "#00798c", "flex": "#8d6a9f", "sdpa": "#30638e", "eager": "#b0a990", "efficient": "#7aa95c", "math": "#b0a990",
    "jax_xla": "#c9a227", "jax_cudnn": "#e07a1f", "pallas_triton": "#9c6644", "pallas_mosaic": "#5e503f", "unfused": "#999999",
}  # fmt: skip
# Vendors' figures of what has not been measured here: dense 16-bit TFLOP/s and TB/s.
_VENDOR = {"NVIDIA H200": (989.0, 4.8), "NVIDIA H100 80GB HBM3": (989.0, 3.35)}


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "foveal", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})
    return plt


def words(case: str) -> tuple[str, str]:
    """("forward f32 d64 causal", "1024"): what a table row shares, and the length that varies along it."""
    parts = case.split()
    length = next(word[1:] for word in parts if re.fullmatch(r"q\d+(:\d+)?", word))
    kept = [word for word in parts if not re.fullmatch(r"[bq]\d+(:\d+)?", word) and not re.fullmatch(r"h\d+", word)]
    return " ".join(kept), length


def _title(key: tuple[str, str, Any]) -> str:
    suite, machine, threads = key
    return f"{suite}, {machine.split(' (')[0]}" + (f", {threads} thread{'s' if threads != 1 else ''}" if threads else "")


def _stem(kind: str, key: tuple[str, str, Any]) -> str:
    suite, machine, threads = key
    return re.sub(r"[^a-z0-9]+", "-", f"{kind} {suite} {machine.split(' (')[0]} {f'{threads}t' if threads else ''}".lower()).strip("-")


def by_suite(rows: list[dict[str, Any]]) -> dict[tuple[str, str, Any], dict[str, dict[str, dict[str, Any]]]]:
    """(suite, machine, threads) -> case -> contender -> row."""
    found: dict[Any, dict[str, Any]] = collections.defaultdict(dict)
    for (machine, threads, suite, case), group in cases(rows).items():
        found[suite, machine, threads][case] = group
    return found


def speed(plt: Any, group: dict[str, dict[str, dict[str, Any]]]) -> Any:
    """Rate over sequence length, every contender, one panel for each kind of case that has more than one length."""
    kinds: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for case, contenders in group.items():
        kind, length = words(case)
        kinds[kind][length] = contenders
    kinds = {kind: lengths for kind, lengths in kinds.items() if len(lengths) > 1}
    if not kinds:
        return None
    # Forward above backward: the same column, the same problem.
    passes = sorted({kind.split()[0] for kind in kinds}, reverse=False)
    problems = sorted({kind.split(maxsplit=1)[1] for kind in kinds})
    wrap = 6 if len(problems) <= 6 else 4
    bands = -(-len(problems) // wrap)
    figure, axes = plt.subplots(len(passes) * bands, min(wrap, len(problems)), figsize=(3.0 * min(wrap, len(problems)), 2.5 * len(passes) * bands), squeeze=False)
    used = set()
    terascale = any(row["gflops"] > 20000 for c in group.values() for row in c.values() if "gflops" in row)
    handles: dict[str, Any] = {}
    for number, problem in enumerate(problems):
        for band, name in enumerate(("forward", "backward")):
            kind = f"{name} {problem}"
            if kind not in kinds:
                continue
            axis = axes[number // wrap * len(passes) + band % len(passes), number % wrap]
            used.add(axis)
            ordered = sorted(kinds[kind], key=lambda s: int(s.split(":")[0]))
            present = sorted({who for n in ordered for who in kinds[kind][n]}, key=lambda who: (who == OURS, who))
            for who in present:
                points = [(i, kinds[kind][n][who]["gflops"] / (1000 if terascale else 1)) for i, n in enumerate(ordered) if "gflops" in kinds[kind][n].get(who, {})]
                if points:
                    (handles[who],) = axis.plot(*zip(*points), marker="o", markersize=3, color=_COLOURS.get(who), linewidth=2.2 if who == OURS else 1.1)
            axis.set_xticks(range(len(ordered)), [f"{int(n) // 1024}k" if n.isdigit() and int(n) % 1024 == 0 else n for n in ordered])
            axis.set_title(kind, fontsize=8)
            axis.set_ylim(bottom=0)
            if number % wrap == 0:
                axis.set_ylabel("TFLOP/s" if terascale else "GFLOP/s")
    for axis in axes.flat:
        if axis not in used:
            axis.axis("off")
    order = sorted(handles, key=lambda who: (who != OURS, who))
    figure.legend([handles[who] for who in order], order, loc="lower center", ncol=len(order), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.03 if len(passes) * bands > 2 else 0.05, 1, 0.97))
    return figure


def ratios(plt: Any, group: dict[str, dict[str, dict[str, Any]]]) -> Any:
    """How many times as fast as the best rival, over sequence length; below the line at 1 foveal loses."""
    lines: dict[str, dict[str, dict[int, float]]] = collections.defaultdict(lambda: collections.defaultdict(dict))
    for case, contenders in group.items():
        kind, length = words(case)
        name, problem = kind.split(maxsplit=1)
        if best_rival(contenders):
            lines[name][problem][int(length.split(":")[0])] = ratio(contenders)
    if not lines or max(len(points) for kinds in lines.values() for points in kinds.values()) < 2:
        return None
    figure, axes = plt.subplots(1, len(lines), figsize=(5.6 * len(lines), 3.4), squeeze=False, sharey=True)
    for axis, name in zip(axes.flat, ("forward", "backward")):
        for number, (problem, points) in enumerate(sorted(lines[name].items())):
            if len(points) < 2:
                continue
            ordered = sorted(points.items())
            colour = plt.get_cmap("tab10")(number // 2 % 10)
            axis.plot(*zip(*ordered), marker="o", markersize=3, label=problem, color=colour, linestyle="--" if "causal" in problem else "-")
        axis.axhline(1.0, color="black", linewidth=1)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({n for points in lines[name].values() for n in points}))
        axis.xaxis.set_major_formatter(lambda n, _: f"{int(n) // 1024}k" if n >= 1024 and n % 1024 == 0 else f"{int(n)}")
        axis.set_title(f"{name}: times the best rival's speed", fontsize=9)
        axis.set_xlabel("sequence length")
        axis.legend(fontsize=7, frameon=False, ncol=2)
    figure.tight_layout()
    return figure


def _traffic(case: str) -> float:
    """Bytes that must move: every input read once, every result written once."""
    (problem,) = parse(case, "")
    element = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}[problem.dtype]
    rows_q = problem.batch * problem.heads_q * problem.seqlen_q
    rows_kv = problem.batch * problem.heads_kv * problem.seqlen_kv
    q, out = rows_q * problem.head_dim, rows_q * problem.head_dim_v
    kv = rows_kv * (problem.head_dim + problem.head_dim_v)
    elements = q + kv + out if not problem.backward else 2 * q + 2 * kv + 2 * out
    return element * elements + 4.0 * rows_q


def roofline(plt: Any, key: tuple[str, str, Any], group: dict[str, dict[str, dict[str, Any]]], rows: list[dict[str, Any]]) -> Any:
    """Rate over arithmetic intensity, foveal and the best rival of each case, under what the machine can do."""
    _, machine, threads = key
    peaks: dict[str, float] = {}
    bandwidth = 0.0
    note = ""
    if machine in _VENDOR:
        peaks = {"bf16": _VENDOR[machine][0] * 1e3, "f16": _VENDOR[machine][0] * 1e3}
        bandwidth, note = _VENDOR[machine][1] * 1e3, "vendor's figures"
    else:
        field = "gflops" if threads == 1 else "two_threads_gflops"
        measured = {row["case"]: row[field] for row in rows if row["suite"] == "peaks" and row["machine"] == machine and field in row}
        vectors = [rate for name, rate in measured.items() if "FMADD" in name]
        matrices = [rate for name, rate in measured.items() if "BF16" in name]
        copies = [row["gbytes"] for row in rows if row["suite"] == "memory" and row["machine"] == machine and row["threads"] == threads]
        if vectors:
            peaks["f32"] = max(vectors)
        if matrices:
            peaks["bf16"] = max(matrices)
        bandwidth, note = max(copies, default=0.0), "measured"
    if not peaks:
        return None
    figure, axes = plt.subplots(1, 2, figsize=(11.2, 3.6), squeeze=False, sharey=True)
    for axis, name in zip(axes.flat, ("forward", "backward")):
        intensities = []
        for case, contenders in group.items():
            if not case.startswith(name) or case.split()[1] not in peaks:
                continue
            (problem,) = parse(case, "")
            intensity = problem.flops / _traffic(case)
            intensities.append(intensity)
            marker = "o" if problem.dtype == "f32" else "s"
            axis.plot(intensity, contenders[OURS]["gflops"], marker, color=_COLOURS[OURS], markersize=4)
            rival = best_rival(contenders)
            if rival:
                axis.plot(intensity, contenders[rival]["gflops"], marker, color="#30638e", markersize=4, fillstyle="none")
        if not intensities:
            continue
        span = [min(intensities) / 4, max(intensities) * 2]
        if bandwidth:
            span[0] = min(span[0], min(peaks.values()) / bandwidth / 2)
        for dtype, peak in peaks.items():
            ridge = max(span[0], peak / bandwidth) if bandwidth else span[0]
            axis.plot([ridge, span[1]], [peak, peak], color="black", linewidth=1)
            axis.annotate(f"{dtype}: {peak:.0f} GFLOP/s" if peak < 20000 else f"{peak / 1000:.0f} TFLOP/s", (span[1], peak), ha="right", va="bottom", fontsize=7)
            if bandwidth:
                axis.plot([span[0], ridge], [span[0] * bandwidth, ridge * bandwidth], color="black", linewidth=1)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_xlabel("operations for each byte that must move")
        axis.set_title(f"{name}; peaks: {note}; red: foveal, blue: best rival" + ("; round: f32, square: 16 bits" if "f32" in peaks else ""), fontsize=8)
    axes[0, 0].set_ylabel("GFLOP/s")
    figure.tight_layout()
    return figure


def score_cost(plt: Any, group: dict[str, dict[str, dict[str, Any]]]) -> Any:
    """What a score costs: its time over that of plain causal attention, foveal and FlexAttention, forward and backward."""
    dtypes = sorted({case.split()[1] for case in group if "score=" in case})
    if not dtypes:
        return None
    figure, axes = plt.subplots(2, len(dtypes), figsize=(8.4 * len(dtypes), 5.4), squeeze=False, sharey=True)
    for column, dtype in enumerate(dtypes):
        for axis, name in zip(axes[:, column], ("forward", "backward")):
            chosen = {case.partition("score=")[2]: contenders for case, contenders in group.items() if case.startswith(f"{name} {dtype} ")}
            scores = [score for score in chosen if score]
            plain = chosen.get("", {}).get(OURS, {}).get("ms")
            if plain is None:
                continue
            for offset, who in ((-0.2, OURS), (0.2, "flex")):
                times = [chosen[score].get(who, {}).get("ms") for score in scores]
                places = [i + offset for i, t in enumerate(times) if t]
                heights = [t / plain for t in times if t]
                bars = axis.bar(places, heights, 0.38, color=_COLOURS[who], label=who)
                axis.bar_label(bars, [f"{h:.1f}" if h < 100 else f"{h:.0f}" for h in heights], fontsize=6)
            axis.axhline(1.0, color="black", linewidth=1)
            axis.set_yscale("log", base=2)
            axis.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
            axis.set_xticks(range(len(scores)), [score.replace("_", "\n") for score in scores], fontsize=6)
            axis.set_title(f"{name} {dtype}: time over foveal's plain causal attention; no bar: refused or failed", fontsize=8)
            axis.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    return figure


_KNOWN = {"llama": "Llama 3.2 1B", "gemma2": "Gemma 2 2B, 8 layers", "t5": "T5-base", "gpt2": "GPT-2 124M"}


def _without(row: dict[str, Any] | None) -> str:
    """What stands in the place of a bar."""
    if row is None:
        return "not\ntried"
    return "not\noffered" if "does not support" in row["refused"] else "failed"


def models(plt: Any, rows: list[dict[str, Any]]) -> Any:
    """Training steps of known models: time and memory with each attention, side by side."""
    steps: dict[str, dict[str, dict[str, Any]]] = collections.defaultdict(dict)
    for row in rows:
        steps[row["case"]][row["contender"]] = row
    contenders = [who for who in ("eager", "sdpa", "flex", OURS) if any(who in found for found in steps.values())]
    figure, axes = plt.subplots(1, 2, figsize=(10.4, 3.4))
    for axis, field, scale, title in zip(axes, ("ms", "peak_bytes"), (1, 2**30), ("milliseconds of a training step", "GiB of memory at the peak"), strict=True):
        for number, who in enumerate(contenders):
            heights = [steps[case].get(who, {}).get(field, 0) / scale for case in steps]
            places = [i + (number - (len(contenders) - 1) / 2) * 0.8 / len(contenders) for i in range(len(heights))]
            bars = axis.bar(places, heights, 0.76 / len(contenders), color=_COLOURS.get(who, _COLOURS["torch_sdpa"]), label=who)
            words = [f"{h:.0f}" if h else _without(found.get(who)) for h, found in zip(heights, steps.values(), strict=True)]
            for height, label in zip(heights, axis.bar_label(bars, words, fontsize=7), strict=True):
                label.set_fontsize(7 if height else 5.5)
        axis.set_xticks(range(len(steps)), [f"{_KNOWN.get(case.split()[0], case.split()[0])}\n{' '.join(case.split()[1:])}" for case in steps], fontsize=7)
        axis.set_title(f"{title}; less is better", fontsize=9)
    axes[0].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    return figure


def draw(rows: list[dict[str, Any]], folder: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
    """(title, PNG) of every figure that the rows allow."""
    plt = _pyplot()
    written: list[tuple[str, pathlib.Path]] = []

    def save(kind: str, what: str, key: tuple[str, str, Any], figure: Any) -> None:
        if figure is None:
            return
        path = folder / f"{_stem(kind, key)}.png"
        figure.savefig(path, dpi=110, metadata={"Software": None})
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        plt.close(figure)
        written.append((f"{what}: {_title(key)}", path))

    for key, group in sorted(by_suite(rows).items(), key=str):
        if any("score=" in case for case in group):
            save("scores", "What scores cost", key, score_cost(plt, group))
            continue
        save("speed", "Speed over sequence length", key, speed(plt, group))
        save("ratio", "Ratio to the best rival", key, ratios(plt, group))
        save("roofline", "Roofline", key, roofline(plt, key, group, rows))
    for machine in dict.fromkeys(row["machine"] for row in rows if row["suite"] == "models"):
        steps = [row for row in rows if row["suite"] == "models" and row["machine"] == machine]
        save("", "Training steps", ("models", machine, None), models(plt, steps))
    return written
