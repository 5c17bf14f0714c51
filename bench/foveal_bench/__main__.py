"""Benchmarks of foveal: `foveal-bench VERB --help` says what a verb measures and what it takes. docs/benchmarks.md has an example of each."""

from __future__ import annotations

import argparse
import importlib
import pathlib
import sys
from types import ModuleType

from .results import NotResults

VERBS = {  # each a module of that name with arguments(parser) and main(options), imported when it is asked for: some need no torch, some no foveal
    "run": "suites of problem lines: foveal and its rivals, interleaved in one process",
    "report": "tables, plots and one HTML page from result files",
    "overhead": "host time of a call beyond its kernels",
    "shares": "peak rates of this machine, and the share of them that the CPU kernels reach",
    "grid": "plain attention on a GPU by libfoveal.so, compared with cuDNN",
    "race": "plain attention on a GPU by libfoveal.so, cuDNN and FlashAttention-4 in turns",
    "trained": "programmed and trained scores on a GPU by libfoveal.so, compared with the plain pass",
    "shapes": "odd shapes, reproducible gradients and few queries on a GPU by libfoveal.so",
    "first-call": "time to compile the kernels of a score",
    "distributed": "context parallelism on several GPUs, compared with one GPU and with torch's own",
    "models": "training steps of transformers models with eager, sdpa, flex and foveal",
    "llmc": "training steps of llm.c's GPT-2 with its own attention, cuDNN's and foveal's",
    "keep": "rows from the reports of foveal check, fuzz_errors, fuzz_programs, soak and first_call",
}


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if not words or words in (["-h"], ["--help"]):
        print(f"usage: foveal-bench VERB [ARGUMENT...]\n\n{__doc__}\n")
        print("\n".join(f"  {verb:<12} {what}" for verb, what in VERBS.items()))
        return 0 if words else 2
    if words[0] not in VERBS:
        return wrong(f"foveal-bench: {words[0]!r} is no verb; expected one of {', '.join(VERBS)}")
    try:
        module, options = parse(*words)
        return int(module.main(options) or 0)
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] == __package__:
            raise
        return wrong(f"foveal-bench {words[0]}: needs the Python package {error.name}, which is not installed")
    except NotResults as error:
        return wrong(f"foveal-bench {words[0]}: {error}")
    except OSError as error:
        if error.filename is None:
            raise
        return wrong(f"foveal-bench {words[0]}: {error.filename}: {error.strerror}")


def wrong(what: str) -> int:
    print(what, file=sys.stderr)
    return 2


def parse(verb: str, *words: str) -> tuple[ModuleType, argparse.Namespace]:
    """A verb's module, and what it is called with."""
    module = importlib.import_module(f".{verb.replace('-', '_')}", __package__)
    parser = argparse.ArgumentParser(prog=f"foveal-bench {verb}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(f"{verb}.jsonl"), help="file that rows are added to, or folder of a report (default: %(default)s)")
    module.arguments(parser)
    return module, parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
