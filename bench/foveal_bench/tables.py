"""Tables in markdown, from rows alone: of what `run` timed, and of `overhead` and `shares`."""

from __future__ import annotations

import collections
from typing import Any

from . import plots
from .results import OURS, best_rival, built, cases, geomean, ratio


def _where(machine: str, threads: Any) -> str:
    name = machine.split(" (")[0]
    return f"{name}, {threads} thread{'s' if threads != 1 else ''}" if threads else name


def _origin(row: dict[str, Any]) -> str:
    """Where a row can be made again."""
    return f"torch {row['torch']}, commit {built(row)}, `{row['command']}`"


def summary(rows: list[dict[str, Any]]) -> str:
    """One line for each suite, machine, pass and type: how foveal compares with the best rival of each case."""
    groups: dict[Any, list[tuple[float, str, str]]] = collections.defaultdict(list)
    commits: dict[Any, dict[str, str]] = collections.defaultdict(dict)
    for (machine, threads, suite, case), group in cases(rows).items():
        rival = best_rival(group)
        if rival:
            name, dtype = case.split()[:2]
            key = (_where(machine, threads), suite, name, dtype)
            groups[key].append((ratio(group), rival, case))
            commits[key][group[OURS]["commit"]] = built(group[OURS])
    lines = ["| machine | suite | pass | type | cases | times the best rival's speed | least | best rival, most often | commits |", "|---|---|---|---|---|---|---|---|---|"]
    for (where, suite, name, dtype), found in sorted(groups.items()):
        values = [value for value, _, _ in found]
        least = min(found)
        rival, count = collections.Counter(rival for _, rival, _ in found).most_common(1)[0]
        lines.append(
            f"| {where} | {suite} | {name} | {dtype} | {len(values)} | {geomean(values):.2f} | {least[0]:.2f} ({' '.join(least[2].split()[2:])}) "
            f"| {rival} ({count}) | {', '.join(sorted(commits[where, suite, name, dtype].values()))} |"
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
    return "\n".join([*parts, *host_time(rows), *peaks(rows)])

def host_time(rows: list[dict[str, Any]]) -> list[str]:
    found = [row for row in rows if row["suite"] == "overhead"]
    parts = []
    for machine_name in dict.fromkeys(row["machine"] for row in found):
        group = [row for row in found if row["machine"] == machine_name]
        parts.append(
            f"**Host time of one call** of a planned problem on {machine_name}, in us (commit {built(group[0])}, `{group[0]['command']}`). "
            "Kernels: the launch alone, everything given. torch: its autograd around a function that does nothing.\n"
        )
        parts.append("| call | whole | kernels | torch | beyond both |\n|---|---|---|---|---|")
        for row in group:
            cells = [f"{row[key]:.1f}" if key in row else "" for key in ("us", "kernel_us", "torch_us", "beyond_us")]
            parts.append(f"| {row['case']} | " + " | ".join(cells) + " |")
        parts.append("")
    return parts


def peaks(rows: list[dict[str, Any]]) -> list[str]:
    """For each machine: its peaks, what a second core gives, and the share of the peak that each kernel reaches."""
    parts = []
    for name in dict.fromkeys(row["machine"] for row in rows if row["suite"] == "peaks"):
        here = [row for row in rows if row["machine"] == name]
        parts += _peaks_table([row for row in here if row["suite"] == "peaks"])
        parts += _two_cores_table([row for row in here if row["suite"] == "two-cores"])
        parts += _shares_table([row for row in here if row["suite"] == "peak-cpu"])
    return parts


def _made(row: dict[str, Any]) -> str:
    return f"commit {built(row)}, `{row['command']}`"


def _peaks_table(peaks: list[dict[str, Any]]) -> list[str]:
    parts = [f"**Peaks** of {peaks[0]['machine']} (GFLOP/s of CPU time; {_made(peaks[0])})\n"]
    parts.append("| instruction | one core | two cores | gain in wall time |\n|---|---|---|---|")
    for row in peaks:
        gain = f"{row['two_threads_gain']:.2f}" if "two_threads_gain" in row else ""
        parts.append(f"| {row['case']} | {row['gflops']:.0f} | {row['two_threads_gflops']:.0f} | {gain} |")
    return [*parts, ""]


def _two_cores_table(two: list[dict[str, Any]]) -> list[str]:
    if not two:
        return []
    parts = [f"**What a second core gives** on {two[0]['machine']}, wall time (lower quartiles; {_made(two[0])})\n"]
    parts.append("| problem | one, ms | two, ms | gain |\n|---|---|---|---|")
    return [*parts, *(f"| {row['case']} | {row['ms_one']:.2f} | {row['ms_two']:.2f} | {row['gain']:.2f} |" for row in two), ""]


def _shares_table(kernels: list[dict[str, Any]]) -> list[str]:
    if not kernels:
        return []
    parts = [f"**Share of peak**, one core of {kernels[0]['machine']} (median; {_made(kernels[0])})\n"]
    parts.append("| problem | kernel | ms | GFLOP/s | of peak |\n|---|---|---|---|---|")
    for row in kernels:
        share = row["gflops"] / row["peak_gflops"]
        parts.append(f"| {row['case']} | {row['kernel']} | {row['ms']:.2f} | {row['gflops']:.0f} | {share:.2f} |")
    return [*parts, ""]
