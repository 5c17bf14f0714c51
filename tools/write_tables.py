#!/usr/bin/env python3
"""Writes the generated parts of README.md and docs/: what stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.

usage: write_tables.py [--check]

example    README: the first example, word for word
speed      README: six rows of what follows
support    the columns of bench/results/support-*.md; on a machine that is to have one (or has got a new one):
             (echo "<!-- MACHINE, commit HASH, foveal support -->"; foveal support) > bench/results/support-MACHINE.md
architectures  portable GPU kernels on every architecture, compiled without a device, from bench/results/architectures.md; to make that again:
             (echo "<!-- COMPILER, commit HASH, cuda_architectures -->"; build/release/tests/cuda/cuda_architectures) > bench/results/architectures.md
cpu        speed on CPUs, from bench/results/cpu-*.jsonl
gpu        plain attention beside cuDNN on a GPU, from bench/results/h200-sm90.json
few        few queries beside cuDNN and FlexAttention on a GPU, from bench/results/h200-shapes.json
errors     docs/numerics.md: errors beside their bounds, from bench/results/errors-cpu.json:
             build/release/tests/fuzz/fuzz_errors FIRST_SEED SECONDS bench/results/errors-cpu.json
fuzz       docs/reliability.md: inputs that the fuzzing targets took, from bench/results/fuzz.json (tools/fuzz.py --out)
programs   docs/reliability.md: random programs, from bench/results/programs.json (./dev programs SEED SECONDS FILE)
soak       docs/reliability.md: random training steps, from bench/results/soak.json (./dev soak MINUTES SEED FILE)
scores     programmed and trained scores beside FlexAttention on a GPU, from bench/results/h200.jsonl

--check writes nothing; it exits with 1 when a page is not what the example and the result files make of it.
"""
import collections
import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


CORES = {"family 25 model 17": "Zen 4", "family 26 model 2": "Zen 5", "family 6 model 207": "Emerald Rapids"}


def named(machine):
    """A machine as result files write it, with the name that its cores are known by."""
    for numbers, name in CORES.items():
        machine = machine.replace(numbers, name)
    return machine


def example():
    return "```cpp\n" + (ROOT / "examples/01_forward.cpp").read_text() + "```"


def support():
    """One table from those of several machines: the first file that has a target's column provides it."""
    table = {}
    origins = []
    for path in sorted((ROOT / "bench/results").glob("support-*.md")):
        origin, header, _, *rows = path.read_text().splitlines()
        origins.append(origin.removeprefix("<!-- ").removesuffix(" -->"))
        features, *targets = (cell.strip() for cell in header.strip("|").split("|"))
        for row in rows:
            feature, *cells = (cell.strip() for cell in row.strip("|").split("|"))
            for target, cell in zip(targets, cells, strict=True):
                table.setdefault(feature, {}).setdefault(target, cell)
    columns = sorted({target for cells in table.values() for target in cells}, key=lambda name: (["cuda", "cpu", "reference"].index(name.split()[0]), name))
    lines = [f"| {features} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {feature} | " + " | ".join(cells.get(target, "not asked") for target in columns) + " |" for feature, cells in table.items()]
    return "\n".join(lines) + "\n\n" + "; ".join(origins)


def architectures():
    origin, *table = (ROOT / "bench/results/architectures.md").read_text().splitlines()
    return "\n".join(table) + "\n\n" + origin.removeprefix("<!-- ").removesuffix(" -->")


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def cpu_groups():
    """(machine, pass, type, threads): the cases that foveal and PyTorch both ran."""
    groups = collections.defaultdict(lambda: collections.defaultdict(dict))
    for path in sorted((ROOT / "bench/results").glob("cpu-*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            if row.get("suite") != "peers-cpu" or not row.get("ms"):
                continue
            name, dtype = row["case"].split()[:2]
            group = groups[row["machine"], name, dtype, row["threads"]]
            group[row["case"]][row["contender"]] = row
    both = {key: [case for case in cases.values() if {"foveal", "torch_sdpa"} <= case.keys()] for key, cases in sorted(groups.items())}
    return {key: cases for key, cases in both.items() if cases}


def cpu():
    """For each machine, pass, type and number of threads: our rate and how it compares with PyTorch."""
    lines = ["| machine | pass | type | threads | cases | foveal, GFLOP/s | PyTorch SDPA, GFLOP/s | ratio (lowest) |", "|---|---|---|---|---|---|---|---|"]
    for (machine, name, dtype, threads), both in cpu_groups().items():
        ours, theirs = ([case[who]["gflops"] for case in both] for who in ("foveal", "torch_sdpa"))
        ratios = [case["torch_sdpa"]["ms"] / case["foveal"]["ms"] for case in both]
        lines.append(f"| {named(machine)} | {name} | {dtype} | {threads} | {len(both)} | {geometric_mean(ours):.0f} | {geometric_mean(theirs):.0f} "
                     f"| {geometric_mean(ratios):.2f} ({min(ratios):.2f}) |")
    return "\n".join(lines)


def gpu():
    """Kernel times beside cuDNN in one run: geometric means over the lengths of the grid."""
    result = json.loads((ROOT / "bench/results/h200-sm90.json").read_text())["plain"]
    groups = collections.defaultdict(list)
    for row in result["rows"]:
        for name in ("forward", "backward"):
            groups[row["head_dim"], row["causal"], name].append((row[f"{name}_ms"], row[f"cudnn_{name}_ms"], row["length"]))
    lines = [f"{result['device']}, bf16, 16k tokens, hidden size 2048, lengths 512 to 16k, commit `{result['commit']}`:", "",
             "| head dim | mask | pass | to cuDNN, mean over lengths | lowest |", "|---|---|---|---|---|"]
    for (head_dim, causal, name), times in sorted(groups.items()):
        ratios = [theirs / ours for ours, theirs, _ in times]
        lines.append(f"| {head_dim} | {'causal' if causal else 'none'} | {name} | {geometric_mean(ratios):.2f} | {min(ratios):.2f} |")
    return "\n".join(lines)


def few():
    """Times of forward passes that read keys and values and do little else, beside cuDNN or, with programs, FlexAttention in one run."""
    result = json.loads((ROOT / "bench/results/h200-shapes.json").read_text())
    lines = [f"{result['device']}, bf16, commit `{result['commit']}`:", "",
             "| sequences | heads | queries | keys | head dim | us | TB/s of keys and values | times the speed of cuDNN |", "|---|---|---|---|---|---|---|---|"]
    for row in result["few_queries"]:
        batch, heads, heads_kv, seqlen_q, seqlen_kv, dim = row["shape"]
        lines.append(f"| {batch} | {heads}:{heads_kv} | {seqlen_q} | {seqlen_kv} | {dim} | {1e3 * row['ms']:.0f} | "
                     f"{row['bytes_of_keys_and_values'] / row['ms'] * 1e-9:.2f} | {row['cudnn_ms'] / row['ms']:.2f} |")
    lines += ["", "| sequences | heads | queries | keys | head dim | program | us | times the speed of FlexAttention |", "|---|---|---|---|---|---|---|---|"]
    for row in result["few_queries_scores"]:
        batch, heads, heads_kv, seqlen_q, seqlen_kv, dim = row["shape"]
        lines.append(f"| {batch} | {heads}:{heads_kv} | {seqlen_q} | {seqlen_kv} | {dim} | {row['program']} | {1e3 * row['ms']:.0f} | "
                     f"{row['flex_ms'] / row['ms']:.2f} |")
    return "\n".join(lines)


def score_cases():
    """Case: contender: its row, of the suite of scores on a GPU."""
    cases = collections.defaultdict(dict)
    for row in map(json.loads, (ROOT / "bench/results/h200.jsonl").read_text().splitlines()):
        if row["suite"] == "scores-gpu":
            cases[row["case"]][row["contender"]] = row
    return cases


def scores():
    """Each score's time and FlexAttention's, in ms, from one run for each score: the latest that has it."""
    cases = score_cases()
    origin = next(iter(cases.values()))["foveal"]
    lines = [f"{origin['machine']}, `{' '.join(next(iter(cases)).split()[1:])}`, ms; - : FlexAttention failed or refused with its default options:", "",
             "| score | forward | FlexAttention | backward | FlexAttention | commit |", "|---|---|---|---|---|---|"]
    names = dict.fromkeys(case.partition("score=")[2] for case in cases)
    for score in names:
        cells = []
        for name in ("forward", "backward"):
            case = next(found for key, found in cases.items() if key.startswith(name) and key.partition("score=")[2] == score)
            cells += [f"{case[who]['ms']:.2f}" if "ms" in case.get(who, {}) else "-" for who in ("foveal", "flex")]
        lines.append(f"| {score.replace('_', ' ') or 'plain'} | " + " | ".join(cells) + f" | `{case['foveal']['commit'][:7]}` |")
    return "\n".join(lines)


def errors():
    known = json.loads((ROOT / "bench/results/errors-cpu.json").read_text())
    outputs = ["out", "lse", "dq", "dk", "dv", "parameters"]
    cells = {(row["dtype"], row["target"], row["output"]): f"{row['median']:.2f} / {row['p999']:.2f} / {row['worst']:.2f}" for row in known["rows"]}
    lines = ["| type | target | " + " | ".join(outputs) + " |", "|---" * (len(outputs) + 2) + "|"]
    for dtype in ("bf16", "f16", "f32", "f64"):
        for target in sorted({target for kind, target, _ in cells if kind == dtype}):
            lines.append(f"| {dtype} | {target} | " + " | ".join(cells.get((dtype, target, output), "") for output in outputs) + " |")
    last = known["first_seed"] + known["problems"] - 1
    return "\n".join(lines) + (
        f"\n\nSeeds {known['first_seed']} to {last}: {known['problems']:,} problems, {known['checks']:,} checks, {known['failures']} outside of their bound."
    )


def fuzz():
    rows = json.loads((ROOT / "bench/results/fuzz.json").read_text())
    lines = ["| target | inputs | seconds | kept in its corpus | finding |", "|---|---:|---:|---:|---|"]
    lines += [f"| {name} | {row['executions']:,} | {row['seconds']} | {row['inputs_kept']:,} | {row['finding'] or 'none'} |" for name, row in rows.items()]
    return "\n".join(lines)


def programs():
    run = json.loads((ROOT / "bench/results/programs.json").read_text())
    done = run["compared"]
    names = {"value": "values", "derivative": "derivatives", "bounds": "values in their bounds", "blocks": "pairs in their tiles", "call": "tensors of calls"}
    lines = ["| compared | times |", "|---|---:|"] + [f"| {text} | {done.get(name, 0):,} |" for name, text in names.items()]
    last = run["first_seed"] + run["programs"] - 1
    skipped = f"{done.get('nothing to compare', 0):,} calls had nothing to compare (infinite, or too steep), {done.get('refused', 0):,} programs were refused"
    return "\n".join(lines) + f"\n\nSeeds {run['first_seed']} to {last}: {run['programs']:,} programs in {run['seconds']} s, {run['findings']} disagreed; {skipped}."


def soak():
    run = json.loads((ROOT / "bench/results/soak.json").read_text())
    growth = 100 * (run["most_mb"] / run["least_mb"] - 1)
    return (f"{run['minutes']} minutes, {run['problems']:,} problems, {run['steps']:,} steps: {run['first_mb']:.3f} MB at first, {run['last_mb']:.3f} at the end, "
            f"at most {growth:.2f} % apart; {run['changed']} of {run['compared']:,} repeated results changed.")


def speed():
    """What a reader of the README sees: how many times the speed of the best known alternative, forward and backward."""
    rows = []
    grid = json.loads((ROOT / "bench/results/h200-sm90.json").read_text())["plain"]
    for head_dim in (64, 128):
        cells = [geometric_mean([row[f"cudnn_{name}_ms"] / row[f"{name}_ms"] for row in grid["rows"] if row["head_dim"] == head_dim and row["causal"]])
                 for name in ("forward", "backward")]
        rows.append((grid["device"], f"BF16, causal, head dim {head_dim}", "cuDNN", cells))
    cases = score_cases()
    for words, score in (("BF16, causal, softcap", "softcap"), ("BF16, causal, trained bias per head", "head_bias")):
        found = [next(row for case, row in cases.items() if case.startswith(name) and case.endswith(f"score={score}")) for name in ("forward", "backward")]
        rows.append((found[0]["foveal"]["machine"], words, "FlexAttention", [row["flex"]["ms"] / row["foveal"]["ms"] for row in found]))
    for (machine, name, dtype, threads), both in cpu_groups().items():
        if name == "forward" and dtype == "bf16" and threads == 1 and ("Zen 5" in named(machine) or "Emerald" in named(machine)):
            cells = [geometric_mean([case["torch_sdpa"]["ms"] / case["foveal"]["ms"] for case in cases])
                     for cases in (both, cpu_groups()[machine, "backward", dtype, threads])]
            rows.append((f"{named(machine).split(' (avx')[0].replace('(R)', '').replace(' Processor', '')}, one core", "BF16, mean of the suite", "PyTorch SDPA", cells))
    lines = ["| machine | attention | beside | forward | backward |", "|---|---|---|---|---|"]
    return "\n".join(lines + [f"| {machine} | {what} | {beside} | {cells[0]:.2f}x | {cells[1]:.2f}x |" for machine, what, beside, cells in rows])


def distributed():
    """Times of two GPUs and one, and of PyTorch's context_parallel in the same run."""
    rows = [json.loads(line) for line in (ROOT / "bench/results/h200x2-context-parallel.jsonl").read_text().splitlines()]
    machine, cases = rows[0], [row for row in rows if row["kind"] == "case"]
    lines = [f"{machine['gpus']} x {machine['gpu']}, bf16, head dim 128, NCCL {machine['nccl']}, torch {machine['torch']}, commit `{machine['commit']}`, ms:", "",
             "| mask or score | tokens | heads | forward | efficiency | torch | forward and backward | efficiency | torch |", "|---|---|---|---|---|---|---|---|---|"]
    for row in cases:
        heads = ":".join(map(str, dict.fromkeys(row["heads"])))
        cells = []
        for name in ("forward", "both"):
            theirs = f"{row[f'torch_{name}_ms']:.2f}" if f"torch_{name}_ms" in row else "-"
            cells += [f"{row[f'{name}_ms']:.2f}", f"{row[f'efficiency_{name}']:.2f}", theirs]
        lines.append(f"| {row['name']} | {row['tokens']} | {heads} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


PAGES = {"README.md": (example, speed), "docs/support.md": (support, architectures), "docs/performance.md": (cpu, gpu, few, scores), "docs/numerics.md": (errors,), "docs/reliability.md": (fuzz, programs, soak),
         "docs/distributed.md": (distributed,)}


def replaced(page, text, name, body):
    pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.S)
    if not pattern.search(text):
        sys.exit(f"{page} has no place for {name}")
    return pattern.sub(lambda found: found[1] + body + "\n" + found[2], text)


def main():
    for page, parts in PAGES.items():
        path = ROOT / page
        text = fresh = path.read_text()
        for part in parts:
            fresh = replaced(page, fresh, part.__name__, part())
        if "--check" not in sys.argv[1:]:
            path.write_text(fresh)
        elif fresh != text:
            sys.exit(f"{page} is stale: run ./dev docs")


if __name__ == "__main__":
    main()
