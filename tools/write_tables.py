#!/usr/bin/env python3
"""Writes the generated parts of README.md and docs/: what stands between `<!-- begin NAME -->` and `<!-- end NAME -->`, NAME being a function here.

usage: write_tables.py [--check]

Figures come from the rows of bench/results/*.jsonl, which `foveal-bench` writes (docs/benchmarks.md).

--check writes nothing; it exits with 1 when a page is not what the example and the result files make of it.
"""
import collections
import itertools
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from foveal_bench.__main__ import VERBS  # noqa: E402
from foveal_bench.case import parse  # noqa: E402
from foveal_bench.report import results_page  # noqa: E402
from foveal_bench.results import FIELDS, SUITES, built, geomean, load  # noqa: E402


CORES = {"family 25 model 17": "Zen 4", "family 26 model 2": "Zen 5", "family 6 model 207": "Emerald Rapids"}


def named(machine):
    """A machine as result files write it, with the name that its cores are known by."""
    for numbers, name in CORES.items():
        machine = machine.replace(numbers, name)
    return machine


def example():
    return "```cpp\n" + (ROOT / "examples/01_forward.cpp").read_text() + "```"


def support():
    """What each target takes: of a target that several machines have, what the last one said."""
    table, origins, emulated = collections.defaultdict(dict), {}, set()
    for row in rows_of("support", "support"):
        forward, backward = row["forward"], row["backward"]
        table[row["case"]][row["contender"]] = forward if forward == backward else f"{forward} / {backward}"
        origins[row["case"], row["contender"]] = f"{named(row['machine']).split(' (avx')[0]}, commit {built(row)}"
        if row["machine"].startswith("emulated"):
            emulated.add(row["contender"])
    columns = sorted({target for cells in table.values() for target in cells}, key=lambda name: (["cuda", "cpu", "reference"].index(name.split()[0]), name))
    lines = ["| forward / backward | " + " | ".join(name + (" (emulated)" if name in emulated else "") for name in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {feature} | " + " | ".join(cells.get(target, "not tried") for target in columns) + " |" for feature, cells in table.items()]
    return "\n".join(lines) + "\n\n" + "; ".join(dict.fromkeys(origins.values()))


def architectures():
    rows = rows_of("architectures", "architectures")
    lines = ["| architecture | pass | kernels | most registers | most shared memory of a CTA | of |", "|---|---|---|---|---|---|"]
    for row in rows:
        name, _, architecture = row["case"].partition(" ")
        lines.append(f"| {architecture} | {name} | {row['kernels']} | {row['registers']} | {row['shared_kib']} KiB | {row['shared_limit_kib']} KiB |")
    return "\n".join(lines) + f"\n\nCUDA's NVRTC {rows[0]['nvrtc']}, commit {built(rows[0])}"


def amx_variants():
    """Designs of the AMX kernels, timed in turns on two days: ms, and in quiet moments."""
    lines = ["| pass | head dim | design | day 1, ms (quiet) | day 2, ms (quiet) |", "|---|---|---|---|---|"]
    found = collections.defaultdict(dict)
    for row in rows_of("cpu-intel-amx-variants", "variants"):
        name, head_dim = row["case"].split()[0], re.search(r" d(\d+)", row["case"])[1]
        found[name, head_dim, row["contender"], row["note"]][row["turn"]] = f"{row['ms']:.2f} ({row['ms_quiet']:.2f})"
    for (name, head_dim, contender, note), turns in found.items():
        lines.append(f"| {name} | {head_dim} | {contender}: {note} | {turns.get(0, '')} | {turns.get(1, '')} |")
    return "\n".join(lines)


def rows_of(name, suite=None):
    """The rows of files of that name, * standing for anything: of one suite, or of all."""
    return [row for row in load(sorted((ROOT / "bench/results").glob(f"{name}.jsonl"))) if suite in (None, row["suite"])]


def by_case(rows):
    """case: contender: row."""
    cases = collections.defaultdict(dict)
    for row in rows:
        cases[row["case"]][row["contender"]] = row
    return cases


def cpu_groups():
    """(machine, pass, type, threads): the cases that foveal and PyTorch both ran."""
    groups = collections.defaultdict(list)
    for row in rows_of("cpu-*", "peers-cpu"):
        if row.get("ms"):
            name, dtype = row["case"].split()[:2]
            groups[row["machine"], name, dtype, row["threads"]].append(row)
    both = {key: [case for case in by_case(rows).values() if {"foveal", "torch_sdpa"} <= case.keys()] for key, rows in sorted(groups.items())}
    return {key: cases for key, cases in both.items() if cases}


def cpu():
    """For each machine, pass, type and number of threads: our rate and how it compares with PyTorch."""
    lines = ["| machine | pass | type | threads | cases | foveal, GFLOP/s | PyTorch SDPA, GFLOP/s | ratio (lowest) |", "|---|---|---|---|---|---|---|---|"]
    for (machine, name, dtype, threads), both in cpu_groups().items():
        ours, theirs = ([case[who]["gflops"] for case in both] for who in ("foveal", "torch_sdpa"))
        ratios = [case["torch_sdpa"]["ms"] / case["foveal"]["ms"] for case in both]
        lines.append(f"| {named(machine)} | {name} | {dtype} | {threads} | {len(both)} | {geomean(ours):.0f} | {geomean(theirs):.0f} "
                     f"| {geomean(ratios):.2f} ({min(ratios):.2f}) |")
    return "\n".join(lines)


def cpu_decode():
    """One query over a cache: milliseconds of a call, and how it compares with PyTorch, for each machine and type."""
    lines = ["| machine | type | attention | foveal, ms | PyTorch SDPA, ms | ratio |", "|---|---|---|---|---|---|"]
    groups = collections.defaultdict(list)
    for row in rows_of("cpu-*", "decode-cpu"):
        if row.get("ms"):
            groups[row["machine"]].append(row)
    for machine, rows in sorted(groups.items()):
        for case, of in by_case(rows).items():
            if not {"foveal", "torch_sdpa"} <= of.keys():
                continue
            _, dtype, batch, heads, lengths, dim = case.split()
            text = f"batch {batch[1:]}, heads {heads[1:]}, {lengths.split(':')[1]} keys, head dim {dim[1:]}"
            ours, theirs = of["foveal"]["ms"], of["torch_sdpa"]["ms"]
            lines.append(f"| {named(machine)} | {dtype} | {text} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |")
    return "\n".join(lines)


def cpu_scores():
    """Programmed scores over a causal mask: time relative to the plain pass of the same run, and speed relative to FlexAttention."""
    lines = ["| machine | pass | type | scores | time relative to plain (largest) | speed relative to FlexAttention (lowest) |", "|---|---|---|---|---|---|"]
    groups = collections.defaultdict(list)
    for row in rows_of("cpu-*", "scores-cpu"):
        if row.get("ms"):
            name, dtype = row["case"].split()[:2]
            groups[row["machine"], name, dtype].append(row)
    for (machine, name, dtype), rows in sorted(groups.items()):
        cases = by_case(rows)
        programs = {case: of for case, of in cases.items() if "score=" in case}
        times = [of["foveal"]["ms"] / cases[case.split(" score=")[0]]["foveal"]["ms"] for case, of in programs.items()]
        rivals = [of["flex"]["ms"] / of["foveal"]["ms"] for of in programs.values() if "flex" in of]
        beside = f"{geomean(rivals):.2f} ({min(rivals):.2f})" if rivals else "-"
        lines.append(f"| {named(machine)} | {name} | {dtype} | {len(programs)} | {geomean(times):.2f} ({max(times):.2f}) | {beside} |")
    return "\n".join(lines)


def grid_groups():
    """(head_dim, causal, pass): [(problem, foveal's row, cuDNN's)], by length."""
    groups = collections.defaultdict(list)
    for text, row in by_case(rows_of("h200-sm90", "grid")).items():
        (problem,) = parse(text, "grid")
        groups[problem.head_dim, problem.causal, "backward" if problem.backward else "forward"].append((problem, row["foveal"], row["cudnn"]))
    return groups


def gpu():
    """Kernel times beside cuDNN in one run: geometric means over the lengths of the grid."""
    groups = grid_groups()
    ((_, first, _), *_) = next(iter(groups.values()))
    lines = [f"{first['machine']}, bf16, 16k tokens, hidden size 2048, lengths 512 to 16k, commit {built(first)}:", "",
             "| head dim | mask | pass | speed relative to cuDNN, mean over lengths | lowest |", "|---|---|---|---|---|"]
    for (head_dim, causal, name), found in sorted(groups.items()):
        ratios = [theirs["ms"] / ours["ms"] for _, ours, theirs in found]
        lines.append(f"| {head_dim} | {'causal' if causal else 'none'} | {name} | {geomean(ratios):.2f} | {min(ratios):.2f} |")
    return "\n".join(lines)


def race():
    """Kernel times beside FlashAttention-4 in turns: geometric means over the lengths of the grid."""
    groups = collections.defaultdict(list)
    for text, row in by_case(rows_of("h200-race")).items():
        if "fa4" in row:
            (problem,) = parse(text, "race")
            groups[problem.head_dim, problem.causal, "backward" if problem.backward else "forward"].append((row["foveal"], row["fa4"]))
    first = next(iter(groups.values()))[0][0]
    lines = [f"{first['machine']}, the same cases, commit {built(first)}:", "",
             "| head dim | mask | pass | speed relative to FlashAttention-4, mean over lengths | lowest |", "|---|---|---|---|---|"]
    for (head_dim, causal, name), found in sorted(groups.items()):
        ratios = [theirs["ms"] / ours["ms"] for ours, theirs in found]
        lines.append(f"| {head_dim} | {'causal' if causal else 'none'} | {name} | {geomean(ratios):.2f} | {min(ratios):.2f} |")
    return "\n".join(lines)


def grid():
    """The same, each length."""
    groups = grid_groups()
    ((_, first, _), *_) = next(iter(groups.values()))
    lengths = [problem.seqlen_q for problem, _, _ in next(iter(groups.values()))]
    lines = [f"{first['machine']}, commit {built(first)}, cuDNN {first['cudnn']} through torch {first['torch']}. TFLOP/s, foveal / cuDNN:", "",
             "| head dim, mask, pass | " + " | ".join(map(str, lengths)) + " | ratio of means |", "|---|" + "---|" * (len(lengths) + 1)]
    for (dim, causal, name), found in groups.items():
        pairs = [tuple(problem.flops / row["ms"] * 1e-9 for row in both) for problem, *both in found]
        cells = " | ".join(f"{a:.0f} / {b:.0f}" for a, b in pairs)
        lines.append(f"| {dim} {'causal' if causal else 'full'} {name} | {cells} | {geomean(a / b for a, b in pairs):.2f} |")
    return "\n".join(lines)


def trained():
    lines = []
    for dim, rows in itertools.groupby(rows_of("h200-sm90", "trained"), key=lambda row: row["head_dim"]):
        found = list(rows)
        lines += ["", f"{found[0]['machine']}, commit {built(found[0])}. B4 H{1024 // dim} S4096 D{dim}, causal; ms, in brackets relative to the plain pass: each pass alone "
                  "after 100 ms of warm-up, then interleaved in turns of 30 ms:", "", "| score | forward | backward | forward, short turns | backward, short turns |",
                  "|---|---|---|---|---|"]
        for name, both in itertools.groupby(found, key=lambda row: row["name"]):
            passes = list(both)
            cells = [f"{row[f'{turns}ms']:.2f} ({row[f'{turns}ms'] / row[f'{turns}plain_ms']:.2f})" for turns in ("", "short_") for row in passes]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines[1:])


def few_rows():
    """(problem, foveal's row, the rival's, how it compares) of few queries, without and with programs."""
    for suite, rival in (("few-queries", "cudnn"), ("few-queries-scores", "flex")):
        yield [(parse(text, suite)[0], row["foveal"], row[rival], f"{row[rival]['ms'] / row['foveal']['ms']:.2f}")
               for text, row in by_case(rows_of("h200-shapes", suite)).items()]


def commits(rows):
    """Which foveal was measured: "commit `a` (day)", "commits `a` (day), `b` (day)"."""
    names = list({row["commit"]: built(row) for row in rows}.values())
    return f"commit{'s' if len(names) > 1 else ''} {', '.join(names)}"


def heads(problem):
    return f"{problem.heads_q}:{problem.heads_kv}"


def few():
    """Times of forward passes that read keys and values and do little else, beside cuDNN or, with programs, FlexAttention in one run."""
    plain, scores = few_rows()
    lines = [f"{plain[0][1]['machine']}, bf16, {commits([ours for _, ours, _, _ in plain + scores])}:", "",
             "| sequences | heads | queries | keys | head dim | us | TB/s of keys and values | speed relative to cuDNN |", "|---|---|---|---|---|---|---|---|"]
    lines += [f"| {p.batch} | {heads(p)} | {p.seqlen_q} | {p.seqlen_kv} | {p.head_dim} | {1e3 * row['ms']:.0f} | {row['kv_bytes'] / row['ms'] * 1e-9:.2f} "
              f"| {ratio} |" for p, row, _, ratio in plain]
    lines += ["", "| sequences | heads | queries | keys | head dim | program | us | speed relative to FlexAttention |", "|---|---|---|---|---|---|---|---|"]
    lines += [f"| {p.batch} | {heads(p)} | {p.seqlen_q} | {p.seqlen_kv} | {p.head_dim} | {p.score.replace('_', ' ')} | {1e3 * row['ms']:.0f} | {ratio} |"
              for p, row, _, ratio in scores]
    return "\n".join(lines)


def pages():
    """Paged keys beside the same keys in contiguous rows."""
    cases = collections.defaultdict(dict)
    for row in rows_of("h200-pages", "variants"):
        cases[row["case"]][row["contender"]] = row
    first = next(iter(cases.values()))["foveal"]
    sizes = sorted({name for found in cases.values() for name in found if name != "foveal"}, key=lambda name: -int(name.partition("=")[2]))
    lines = [f"{first['machine']}, commit {built(first)}:", "", "| contiguous keys | us | " + " | ".join(f"{name.split()[1]}, relative speed" for name in sizes) + " |",
             "|---|---|" + "---|" * len(sizes)]
    for case, found in cases.items():
        cells = [f"{found['foveal']['ms'] / found[name]['ms']:.2f}" if name in found else "" for name in sizes]
        lines.append(f"| {case} | {1e3 * found['foveal']['ms']:.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shapes():
    """Shapes beside their round neighbours, reproducible gradients beside fast ones."""
    found = collections.defaultdict(dict)
    for row in rows_of("h200-shapes", "shapes"):
        found[row["name"]][row["case"].split()[0]] = row
    first = next(iter(found.values()))["forward"]
    lines = [f"{first['machine']}, commit {built(first)}, bf16. TFLOP/s, and speed relative to the round neighbour:", "",
             "| shape | neighbour | forward | backward |", "|---|---|---|---|"]
    for name, passes in found.items():
        neighbour = passes["forward"]["neighbour"]
        if neighbour:
            cells = [f"{passes[p]['tflops']:.3g} ({passes[p]['tflops'] / found[neighbour][p]['tflops']:.2f})" if p in passes else "" for p in ("forward", "backward")]
            lines.append(f"| {name} | {neighbour} | {' | '.join(cells)} |")
    lines += ["", "Reproducible backward, 16k tokens, hidden size 2048, bf16: time relative to the fast one:", "",
              "| head dim, mask | 1024 | 4096 | 16384 |", "|---|---|---|---|"]
    ratios = collections.defaultdict(list)
    for text, row in by_case(rows_of("h200-shapes", "reproducible")).items():
        (problem,) = parse(text, "reproducible")
        ratios[problem.head_dim, problem.causal].append(f"{row['reproducible']['ms'] / row['fast']['ms']:.2f}")
    lines += [f"| {dim} {'causal' if causal else 'full'} | {' | '.join(cells)} |" for (dim, causal), cells in ratios.items()]
    return "\n".join(lines)


def first_call():
    rows = rows_of("first-call")
    lines = [f"{rows[0]['cores']} cores of {rows[0]['machine']}, commit {built(rows[0])}, causal, empty cache. CPU seconds, least of {rows[0]['turns']} runs"
             " (in brackets: the version before):", "", "| head dim | program | forward | backward |", "|---|---|---|---|"]
    for (dim, name), found in itertools.groupby(rows, key=lambda row: (row["head_dim"], row["name"])):
        passes = by_case(found).values()
        cells = [f"{row['foveal']['cpu_s']:.2f}" + (f" ({row['before']['cpu_s']:.2f})" if "before" in row else "") for row in passes]
        lines.append(f"| {dim} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def first_call_gpu():
    """What is waited for, by program and cores; the latest rows that say how many cores there were."""
    rows = [row for row in rows_of("h200-first-call", "first-call-gpu") if " on " in row["case"]]
    names = {"": "plain", "tanh": "softcap 30", "exp2": "ALiBi"}
    waits = collections.defaultdict(dict)
    for row in rows:
        call, _, cores = row["case"].rpartition(" on ")
        head_dim = int(re.search(r" d(\d+)", call)[1])
        name = next(name for key, name in reversed(names.items()) if key in call.partition("score=")[2])
        name += ", compiled with the library" if name == "plain" and row.get("kernels_shipped") else ""
        waits[head_dim, name][cores] = row["phases_ms"]["first_both"] / 1e3
    def seconds(found, cores):
        return f"{found[cores]:.2g}" if found.get(cores, 1) < 0.1 else f"{found[cores]:.2f}" if cores in found else "-"
    lines = [f"{rows[-1]['machine']}, bf16 H16 S4096, B4 (B1 where kernels were compiled with the library), causal, {commits(rows)}, empty caches; seconds until the first forward and backward are done:", "",
             "| head dim | program | 8 cores | 2 cores |", "|---|---|---|---|"]  # fmt: skip
    lines += [f"| {head_dim} | {name} | {seconds(found, '8 cores')} | {seconds(found, '2 cores')} |" for (head_dim, name), found in sorted(waits.items())]
    def least(phase):
        return 1e3 * min(row["phases_ms"][phase] for row in decoding)
    decoding = [row for row in rows if "decode" in row["phases_ms"]]
    return "\n".join(lines) + (
        f"\n\nHost time of a decode call, least of {len(decoding)} means over 500 calls: {least('decode_one_more_key'):.0f} \u00b5s when the cache has grown by one key (softcap: "
        f"{least('softcap_decode_one_more_key'):.0f} \u00b5s), {least('decode'):.0f} \u00b5s when it has not.")


def scores():
    """Each score's time and FlexAttention's, in ms, from one run for each score: the latest that has it."""
    cases = by_case(rows_of("h200", "scores-gpu"))
    origin = next(iter(cases.values()))["foveal"]
    lines = [f"{origin['machine']}, `{' '.join(next(iter(cases)).split()[1:])}`, ms; - : FlexAttention failed or refused with its default options:", "",
             "| score | forward | FlexAttention | backward | FlexAttention | commit |", "|---|---|---|---|---|---|"]
    names = dict.fromkeys(case.partition("score=")[2] for case in cases)
    for score in names:
        cells = []
        for name in ("forward", "backward"):
            case = next(found for key, found in cases.items() if key.startswith(name) and key.partition("score=")[2] == score)
            cells += [f"{case[who]['ms']:.2f}" if "ms" in case.get(who, {}) else "-" for who in ("foveal", "flex")]
        lines.append(f"| {score.replace('_', ' ') or 'plain'} | " + " | ".join(cells) + f" | {built(case['foveal'])} |")
    return "\n".join(lines)


def errors(name="errors-cpu"):
    """Errors of random problems beside their bounds: of several runs the largest, and the means of the others, weighted by the tensors of each."""
    rows = collections.defaultdict(list)
    for row in rows_of(name):
        rows[row["case"]].append(row)
    runs = rows.pop("all", [])
    if not runs:
        return "Not recorded."
    outputs = ["out", "lse", "dq", "dk", "dv", "parameters"]

    def mean(found, field):
        return sum(row[field] * row["tensors"] for row in found) / sum(row["tensors"] for row in found)

    cells = {tuple(case.split()): f"{mean(found, 'median'):.2f} / {mean(found, 'p999'):.2f} / {max(row['worst'] for row in found):.2f}" for case, found in rows.items()}
    lines = ["| type | target | " + " | ".join(outputs) + " |", "|---" * (len(outputs) + 2) + "|"]
    for dtype in ("bf16", "f16", "f32", "f64"):
        for target in sorted({target for kind, target, _ in cells if kind == dtype}):
            lines.append(f"| {dtype} | {target} | " + " | ".join(cells.get((dtype, target, output), "") for output in outputs) + " |")
    for run in sorted(runs, key=lambda run: run["first_seed"]):
        machine = f" ({named(run['machine'])})" if run["machine"] != "not recorded" else ""
        kinds = f" of {run['programs']} programs" if "programs" in run else ""
        refused = f", {run['refusals']:,} refused" if run["refusals"] else ""
        lines += ["", f"Seeds {run['first_seed']} to {run['first_seed'] + run['problems'] - 1}{machine}: {run['problems']:,} problems{kinds}, {run['checks']:,} checks{refused}, "
                  f"{run['failures']} outside their bound. The worst reached {run['worst']:.2f} of its bound: `{run['worst_line']}`"]  # fmt: skip
    if len(runs) > 1:
        total = {field: sum(run[field] for run in runs) for field in ("problems", "checks", "failures")}
        lines += ["", f"Together {total['problems']:,} problems, {total['checks']:,} checks, {total['failures']} outside their bound."]
    return "\n".join(lines)


def errors_gpu():
    return errors("errors-gpu")


def checks():
    """Whole suites against the reference: types and targets of each run, the worst error of them all."""
    lines = ["| machine | commit | `foveal check` of | types and targets | passed | refused | failed | worst error / bound | most queries |", "|---|---|---|---|---:|---:|---:|---:|---:|"]
    runs = collections.defaultdict(list)
    for row in rows_of("check-*"):
        runs[row["machine"], row["commit"], row["command"]].append(row)
    for (machine, _, command), rows in runs.items():
        kinds = collections.defaultdict(list)
        for row in rows:
            dtype, target = row["case"].partition(":")[0].split()
            kinds[target].append(dtype)
        targets = "; ".join(f"{' '.join(dtypes)} on {target}" for target, dtypes in kinds.items())
        passed, refused, failed = (sum(row[name] for row in rows) for name in ("passed", "refusals", "failures"))
        lines.append(f"| {named(machine)} | {built(rows[0])} | {command.removeprefix('foveal check ').replace('|', ' ')} | {targets} | {passed:,} | {refused} | {failed} "
                     f"| {max(row['worst'] for row in rows):.2f} | {max(row['longest'] for row in rows)} |")
    return "\n".join(lines)


def fuzz():
    lines = ["| target | inputs | seconds | kept in its corpus | finding | commit |", "|---|---:|---:|---:|---|---|"]
    latest = {row["case"]: row for row in rows_of("fuzz")}  # whatever machine it was
    lines += [f"| {row['case']} | {row['executions']:,} | {row['seconds']:,} | {row['inputs_kept']:,} | {row['finding'] or 'none'} | {built(row)} |" for row in latest.values()]
    return "\n".join(lines)


def programs():
    (run,) = rows_of("programs")
    done = run["counts"]
    names = {"value": "values", "derivative": "derivatives", "bounds": "values against interval bounds", "blocks": "pairs against block masks", "call": "tensors of calls"}
    lines = ["| compared | times |", "|---|---:|"] + [f"| {text} | {done.get(name, 0):,} |" for name, text in names.items()]
    last = run["first_seed"] + run["programs"] - 1
    skipped = f"{done.get('nothing to compare', 0):,} calls had nothing to compare (results infinite or too steep), {done.get('refused', 0):,} programs were refused"
    return "\n".join(lines) + f"\n\nSeeds {run['first_seed']} to {last}: {run['programs']:,} programs in {run['seconds']} s, {run['findings']} disagreed; {skipped}. Commit: {built(run)}."


def programs_gpu():
    latest = {}
    for row in rows_of("*-programs-gpu"):
        latest.setdefault(row["machine"], []).append(row)
    texts = []
    for machine, rows in latest.items():
        kinds, failed = [row for row in rows if "counts" in row], [row for row in rows if "failure" in row]
        total = sum(sum(row["counts"].values()) for row in kinds)
        lines = ["| type, kernels | right | refused | beyond fp32 | wrong |", "|---|---:|---:|---:|---:|"]
        for row in kinds:
            counts = (f"{row['counts'].get(status, 0):,}" for status in ("pass", "refused", "beyond fp32", "fail"))
            lines.append(f"| {row['case']} | {' | '.join(counts)} |")
        texts.append(f"{machine}, commit {built(kinds[0])}, {total:,} programs from seed {kinds[0]['first_seed']} on:\n\n" + "\n".join(lines))
        texts += [f"- `{row['case'].removesuffix(' device=cuda backend=cuda')}`: {row['failure']}" for row in failed]
    return "\n\n".join(texts)


def soak():
    def memory(run, what):
        growth = 100 * (run[f"{what}most_mb"] / run[f"{what}least_mb"] - 1)
        return f"{run[f'{what}first_mb']:.3f} MB at first, {run[f'{what}last_mb']:.3f} MB at the end, varying by at most {growth:.2f} %"

    said = []
    for run in rows_of("soak"):
        text = f"- {named(run['machine'])}, commit {built(run)}: {run['minutes']:g} minutes, {run['problems']:,} problems, {run['steps']:,} steps: {memory(run, '')}"
        if "device_first_mb" in run:
            text += (f"; on the device {memory(run, 'device_')}, {run['kernels']} kernels loaded at most, of {run['programs']} programs "
                     f"({run['refused_problems']:,} problems were refused)")
        said.append(f"{text}; {run['changed']} of {run['compared']:,} repeated results changed.")
    return "\n".join(said)


def speed():
    """What a reader of the README sees: how many times the speed of the best known alternative, forward and backward."""
    rows = []
    groups = grid_groups()
    for head_dim in (64, 128):
        cells = [geomean(theirs["ms"] / ours["ms"] for _, ours, theirs in groups[head_dim, True, name]) for name in ("forward", "backward")]
        rows.append((groups[head_dim, True, "forward"][0][1]["machine"], f"BF16, causal, head dim {head_dim}", "cuDNN", cells))
    cases = by_case(rows_of("h200", "scores-gpu"))
    for words, score in (("BF16, causal, softcap", "softcap"), ("BF16, causal, trained bias per head", "head_bias")):
        found = [next(row for case, row in cases.items() if case.startswith(name) and case.endswith(f"score={score}")) for name in ("forward", "backward")]
        rows.append((found[0]["foveal"]["machine"], words, "FlexAttention", [row["flex"]["ms"] / row["foveal"]["ms"] for row in found]))
    for (machine, name, dtype, threads), both in cpu_groups().items():
        if name == "forward" and dtype == "bf16" and threads == 1 and ("Zen 5" in named(machine) or "Emerald" in named(machine)):
            cells = [geomean(case["torch_sdpa"]["ms"] / case["foveal"]["ms"] for case in cases)
                     for cases in (both, cpu_groups()[machine, "backward", dtype, threads])]
            rows.append((f"{named(machine).split(' (avx')[0].replace('(R)', '').replace(' Processor', '')}, one core", f"BF16, plain attention, geometric mean of {len(both)} cases", "PyTorch SDPA", cells))
    lines = ["| machine | attention | compared with | forward | backward |", "|---|---|---|---|---|"]
    return "\n".join(lines + [f"| {machine} | {what} | {beside} | {times(cells[0])} | {times(cells[1])} |" for machine, what, beside, cells in rows])


MODELS = {"t5": "T5", "gemma2": "Gemma 2", "llama": "Llama", "gpt2": "GPT-2"}


def listed(names):
    """a, b and c."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def not_offered(row):
    return "does not support an attention implementation" in row.get("refused", "")


def models_caption():
    """What the figure shows, below it."""
    rows = rows_of("h200-models")
    _, dtype, batch, length = rows[0]["case"].split()
    (release,) = {row["transformers"] for row in rows}
    cases = {MODELS[case.split()[0]]: found for case, found in by_case(rows).items()}
    ratios = {who: listed([f"{found['foveal']['ms'] / found[who]['ms']:.2f} on {name}" for name, found in cases.items() if "ms" in found[who]])
              for who in ("sdpa", "flex")}
    missing = [f"{who} for {name}" for name, found in cases.items() for who, row in found.items() if not_offered(row)]
    failed = [f"{who} on {name}: {why(row)}." for name, found in cases.items() for who, row in found.items() if "refused" in row and not not_offered(row)]
    return "\n".join([f"One training step (forward, backward, SGD) on one {rows[0]['machine'].removeprefix('NVIDIA ')}, batch {batch[1:]}, {length[1:]} tokens, {dtype}, "
                      f"transformers {release}.", f"foveal's time over sdpa's: {ratios['sdpa']}; over flex's: {ratios['flex']}.",
                      f"Not offered by transformers: {listed(missing)}. {' '.join(failed)}".rstrip()])


def times(ratio):
    """Beyond a thousand the digits mean nothing."""
    return "over 1000x" if ratio > 1000 else f"{ratio:.2f}x"


def distributed():
    """Times of several GPUs and of one, and of PyTorch's context_parallel in the same run: a table for each machine."""
    machines = collections.defaultdict(lambda: collections.defaultdict(dict))
    for row in rows_of("*-distributed"):
        name, _, _, heads, tokens, *_ = row["case"].split()
        machines[row["gpus"], row["machine"], row["nccl"], row["torch"]][row["name"], tokens[1:], heads[1:]][name, row["contender"]] = row
    tables = []
    for (gpus, machine, nccl, torch), cases in machines.items():
        rows = {row["commit"]: row for found in cases.values() for row in found.values()}
        counts = collections.Counter(row["commit"] for found in cases.values() for row in found.values())
        first, *others = [built(rows[commit]) for commit, _ in counts.most_common()]
        also = f" (torch's times{' and cases that are not in its run' if others else ''}: {', '.join(others)})" if others else ""
        lines = [f"{gpus} x {machine}, bf16, head dim 128, NCCL {nccl}, torch {torch}, commit {first}{also}, ms:", "",
                 "| mask or score | tokens | heads | forward | from rest | efficiency | torch | forward and backward | from rest | efficiency | torch |",
                 "|---|---|---|---|---|---|---|---|---|---|---|"]
        for words, found in cases.items():
            cells = []
            for name in ("forward", "both"):
                ours, theirs = found[name, "foveal"], found.get((name, "torch"), {})
                cells += [f"{ours['ms']:.2f}", f"{ours['latency_ms']:.2f}", f"{ours['efficiency']:.2f}" if "efficiency" in ours else "-",
                          f"{theirs['ms']:.2f}" if "ms" in theirs else "-"]
            lines.append("| " + " | ".join([*words, *cells]) + " |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def why(row):
    """The first sentence of the reason that a row records. Older rows may hold the advice that torch gives below a CUDA error instead."""
    advice = "CUDA kernel errors might be asynchronously reported"
    return "fails with a CUDA error" if row["refused"].startswith(advice) else row["refused"].partition(". ")[0]


def models():
    """Time and memory of a training step with each attention; what failed, and why."""
    rows = rows_of("h200-models")
    cases = by_case(rows)
    columns = [who for who in ("eager", "sdpa", "flex", "foveal") if any(who in found for found in cases.values())]
    lines = [f"{rows[0]['machine']}, torch {rows[0]['torch']}, transformers {rows[0]['transformers']}, commit {built(rows[0])}; a step: forward, backward, SGD:", "",
             "| model, type, batch, length | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    failed = []
    for case, found in cases.items():
        failed += [f"{who}, {case.split()[0]}: {'not offered by transformers' if not_offered(row) else why(row)}" for who, row in found.items() if "refused" in row]
        cells = [f"{found[who]['ms']:.0f} ms, {found[who]['peak_bytes'] / 2**30:.1f} GiB" if "ms" in found.get(who, {}) else "-" for who in columns]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"- {words}" for words in failed)]).rstrip("\n")


def llmc():
    """A training step of llm.c with each attention: medians over the turns, and the losses that they ended with."""
    rows = rows_of("h200-llmc")
    turns = collections.defaultdict(list)
    for row in rows:
        turns[row["contender"]].append(row)
    lines = [f"{rows[0]['machine']}, {rows[0]['case']}, llm.c `{rows[0]['llmc']}`, commit {built(rows[0])}:", "",
             f"| attention | ms a step | tokens/s | loss after {len(rows[0]['losses'])} steps, in {max(map(len, turns.values()))} runs |", "|---|---:|---:|---:|"]
    for who, found in turns.items():
        timed = [row for row in found if "ms" in row]
        ends = sorted({f"{row['losses'][-1]:.4f}" for row in timed})
        cells = [f"{statistics.median(row['ms'] for row in timed):.1f}", f"{statistics.median(row['tokens_per_second'] for row in timed):,.0f}",
                 " to ".join(dict.fromkeys([ends[0], ends[-1]]))] if timed else [found[0]["refused"], "", ""]
        lines.append(f"| {who} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verbs():
    return "\n".join(["| verb | measures |", "|---|---|", *(f"| `{verb}` | {what} |" for verb, what in VERBS.items())])


def fields():
    return "\n".join(["| field | what it is |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in FIELDS.items())])


def suites():
    return "\n".join(["| suite | what it is |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in SUITES.items())])


PAGES = {
    "README.md": (models_caption, example, speed),
    "docs/support.md": (support, architectures),
    "docs/performance.md": (models, llmc, cpu, cpu_scores, cpu_decode, gpu, race, few, pages, scores),
    "docs/numerics.md": (errors, errors_gpu, checks),
    "docs/reliability.md": (fuzz, programs, programs_gpu, soak),
    "docs/distributed.md": (distributed,),
    "docs/benchmarks.md": (verbs, suites, fields),
    "docs/lab/cpu.md": (amx_variants,),
    "docs/lab/gpu.md": (grid, trained, shapes, first_call, first_call_gpu),
}


def replaced(page, text, name, body):
    pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.S)
    if not pattern.search(text):
        sys.exit(f"{page} has no place for {name}")
    return pattern.sub(lambda found: found[1] + body + "\n" + found[2], text)


RESULTS = "docs/report/results.md"


def all_results(text):
    """The page of `foveal-bench report`, whose pictures only that command draws."""
    return results_page(rows_of("*"), [line for line in text.splitlines() if line.startswith("![")])


def main():
    for page, parts in {**PAGES, RESULTS: ()}.items():
        path = ROOT / page
        text = path.read_text()
        fresh = all_results(text) if page == RESULTS else text
        for part in parts:
            fresh = replaced(page, fresh, part.__name__, part())
        if "--check" not in sys.argv[1:]:
            path.write_text(fresh)
        elif fresh != text:
            sys.exit(f"{page} is stale: run ./dev docs")


if __name__ == "__main__":
    main()
