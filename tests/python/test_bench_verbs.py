"""The verbs of foveal-bench on the CPU, small or with stand-ins for what is not here, and the one format that all of them write."""

import ctypes
import importlib.util
import json
import os
import pathlib
import re
import shlex
import stat
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from foveal_bench import progress  # noqa: E402
from foveal_bench.__main__ import VERBS, main  # noqa: E402
from foveal_bench.results import FIELDS, SUITES, Rows, load, read  # noqa: E402

LIBRARY = ROOT / "build/release/libfoveal.so"
needs_results = pytest.mark.skipif(not (ROOT / "bench/results").exists(), reason="a source package has no results")
needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="build/release/libfoveal.so is not built")


def by_case(path):
    cases = {}
    for row in read(path):
        cases.setdefault(row["case"], {})[row["contender"]] = row
    return cases


def program(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# ---- the format ----


@pytest.mark.parametrize("path", sorted((ROOT / "bench/results").glob("*.jsonl")), ids=lambda path: path.stem)
def test_kept_results_have_the_format(path):
    named = {file.stem for file in (ROOT / "bench/suites").glob("*.txt")}
    for row in read(path):
        assert row.keys() <= FIELDS.keys()
        assert row["suite"] in SUITES or row["suite"] in named
        assert row["machine"]


@needs_results
def test_no_result_has_another_format():
    assert {path.suffix for path in (ROOT / "bench/results").iterdir()} == {".jsonl"}


def test_a_run_that_was_cut_short_keeps_its_rows(tmp_path):
    path = tmp_path / "cut.jsonl"
    Rows(path, {"machine": "m"}).add("grid", "a", contender="foveal", ms=1.0)
    path.write_text(path.read_text() + '{"suite": "grid", "case": "b"')  # the machine stopped while this row was written
    with pytest.raises(ValueError, match="cut.jsonl:2: not a row"):
        read(path)
    Rows(path, {"machine": "m"}).add("grid", "c", contender="foveal", ms=2.0)
    assert [row["case"] for row in read(path)] == ["a", "c"]


def test_rows_are_there_as_soon_as_they_are_measured(tmp_path):
    rows = Rows(tmp_path / "new" / "rows.jsonl", {"machine": "m", "commit": "c"})
    for number in range(3):
        rows.add("grid", f"case {number}", contender="foveal", ms=1.0)
        assert len(read(tmp_path / "new" / "rows.jsonl")) == number + 1


def test_a_field_that_nobody_documented_is_refused(tmp_path):
    with pytest.raises(ValueError, match="milliseconds: not in"):
        Rows(tmp_path / "x.jsonl", {}).add("grid", "a", milliseconds=1.0)
    assert not (tmp_path / "x.jsonl").exists()


def test_a_line_that_is_no_row_is_named(tmp_path):
    for text in ('{"suite": "grid"}', "[1]", "nonsense"):
        (tmp_path / "x.jsonl").write_text('{"suite": "grid", "case": "a"}\n' + text + "\n")
        with pytest.raises(ValueError, match="x.jsonl:2: not a row"):
            read(tmp_path / "x.jsonl")


def test_the_last_row_of_a_case_counts_in_the_place_of_its_first(tmp_path):
    rows = Rows(tmp_path / "x.jsonl", {"machine": "m", "threads": 1})
    for case, ms in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        rows.add("grid", case, contender="foveal", ms=ms)
    assert [(row["case"], row["ms"]) for row in load([tmp_path / "x.jsonl"])] == [("a", 3.0), ("b", 2.0)]


def test_the_commit_of_a_library_from_elsewhere_is_named(monkeypatch):
    from foveal_bench import machine

    monkeypatch.setenv("FOVEAL_COMMIT", "1234567")
    monkeypatch.setattr(sys, "argv", ["foveal-bench", "grid", "--library", "x"])
    origin = machine.describe("cpu", 2, nccl="2.0")
    assert (origin["commit"], origin["command"], origin["threads"], origin["nccl"]) == ("1234567", "foveal-bench grid --library x", 2, "2.0")


def test_rows_name_the_commit_that_the_package_was_built_from(monkeypatch, tmp_path):
    from foveal_bench import machine

    monkeypatch.delenv("FOVEAL_COMMIT", raising=False)
    (tmp_path / "commit").write_text("89abcdef-dirty\n")
    package = types.ModuleType("foveal")
    package.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "foveal", package)
    assert machine.describe("cpu")["commit"] == "89abcdef-dirty"
    (tmp_path / "commit").write_text("")  # built outside of a checkout
    assert machine.describe("cpu")["commit"] != ""


def test_the_reason_of_a_failure_is_the_line_that_names_it():
    from foveal_bench.machine import reason

    advice = "CUDA kernel errors might be asynchronously reported at some other API call."
    assert reason(f"Traceback:\n  x\ntorch.AcceleratorError: CUDA error: misaligned address\n{advice}\n\n") == "torch.AcceleratorError: CUDA error: misaligned address"
    assert reason("compiling\nld: error: no such library\nstopped") == "ld: error: no such library"
    assert reason("one\ntwo\n") == "two" and reason("\n") == "no output"
    assert reason(ValueError("first\nsecond")) == "ValueError: first" and reason(MemoryError()) == "MemoryError: "


# ---- the command ----


def test_every_verb_has_help_without_foveal():
    """grid, trained and shapes run where the Python package is not installed, and nothing needs an extra to be imported."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "bench")!r})
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("foveal", "tqdm", "matplotlib", "transformers", "triton", "jax"): raise ImportError(name)
sys.meta_path.insert(0, Absent())
from foveal_bench.__main__ import main
for verb in {[verb for verb in VERBS if verb not in ("overhead", "shares")]}:
    try: main([verb, "--help"])
    except SystemExit as ended: assert ended.code == 0, verb
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: foveal-bench") == len(VERBS) - 2


COMMANDS = [(page.name, line) for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))] if page.parent.name != "report"
            for line in page.read_text().splitlines() if line.startswith("foveal-bench ") and "VERB" not in line]  # fmt: skip


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=lambda text: text[:50])
def test_documented_commands_are_understood(page, line):
    from foveal_bench.__main__ import parse

    words = shlex.split(line, comments=True)[1:]
    module, options = parse(*words)
    assert callable(module.main)
    assert all((ROOT / file).exists() for file in getattr(options, "suites", []) if isinstance(file, pathlib.Path))


def test_every_verb_has_an_example():
    assert {line.split()[1] for page, line in COMMANDS if page == "benchmarks.md"} == set(VERBS)


def test_no_verb_lists_them(capsys):
    assert main([]) == 2 and main(["gird"]) == 2 and main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {verb} " in said for verb in VERBS)


def test_bars_are_silent_without_a_terminal(capsys):
    assert list(progress.progress([1, 2, 3])) == [1, 2, 3]
    progress.say("a line")
    assert capsys.readouterr() == ("a line\n", "")


def test_bars_show_on_a_terminal():
    pytest.importorskip("tqdm")
    import fcntl
    import pty
    import select
    import struct
    import termios

    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminal can be made here: {error}")
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); from foveal_bench.progress import progress; list(progress([1, 2]))"
    done = subprocess.run([sys.executable, "-c", code], stderr=theirs, stdout=subprocess.DEVNULL)
    shown = os.read(ours, 4096) if select.select([ours], [], [], 10)[0] else b""
    assert done.returncode == 0 and b"0/2" in shown
    os.close(theirs)
    os.close(ours)


# ---- kernels by libfoveal.so ----


@needs_library
def test_grid(tmp_path):
    (tmp_path / "small.txt").write_text("both f32 b2 h2 q24 d16\nboth f32 b1 h4:2 q40 d16 causal\n")
    main(["grid", f"--library={LIBRARY}", "--device=cpu", f"--suite={tmp_path}/small.txt", f"--output={tmp_path}/grid.jsonl"])
    cases = by_case(tmp_path / "grid.jsonl")
    assert list(cases) == [f"{name} {line}" for line in ("f32 b2 h2 q24 d16", "f32 b1 h4:2 q40 d16 causal") for name in ("forward", "backward")]
    for both in cases.values():
        assert both["foveal"]["difference"] < 1e-5 and both["foveal"]["kernel"].startswith("cpu.")
        assert both["foveal"]["ms"] > 0 and both["torch_sdpa"]["ms"] > 0


@needs_library
def test_a_grid_of_wrong_results_is_not_timed(tmp_path, monkeypatch):
    from foveal_bench import capi

    monkeypatch.setattr(capi, "sdpa", lambda q, k, v, causal: lambda: 1.02 * v)
    (tmp_path / "small.txt").write_text("forward f32 b2 h2 q24 d16\n")
    with pytest.raises(RuntimeError, match="forward f32 b2 h2 q24 d16: results differ"):
        main(["grid", f"--library={LIBRARY}", "--device=cpu", f"--suite={tmp_path}/small.txt", f"--output={tmp_path}/grid.jsonl"])
    assert not (tmp_path / "grid.jsonl").exists()


class Peer:
    """As flash_attn.cute.interface: [batch, seqlen, heads, dim]."""

    @staticmethod
    def _flash_attn_fwd(q, k, v, causal, return_lse):
        out = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal, enable_gqa=True)
        return out.transpose(1, 2), None, None

    @classmethod
    def _flash_attn_bwd(cls, q, k, v, out, dout, lse, causal):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(cls._flash_attn_fwd(*leaves, causal, True)[0], leaves, dout)


@needs_library
def test_race(tmp_path, monkeypatch):
    (tmp_path / "small.txt").write_text("both f32 b2 h2 q24 d16 causal\n")
    words = ["race", f"--library={LIBRARY}", "--device=cpu", f"--suite={tmp_path}/small.txt", f"--output={tmp_path}/race.jsonl"]
    assert main(words) == 2  # flash_attn is not installed
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", Peer)
    main(words)
    cases = by_case(tmp_path / "race.jsonl")
    assert list(cases) == [f"{name} f32 b2 h2 q24 d16 causal" for name in ("forward", "backward")]
    for row in cases.values():
        assert set(row) == {"foveal", "torch_sdpa", "fa4"} and all(0 < who["ms"] and len(who["ms_turns"]) == 4 for who in row.values())
        assert all(who["difference"] < 1e-5 for who in row.values())


@needs_library
def test_trained(tmp_path):
    main(["trained", f"--library={LIBRARY}", "--device=cpu", "--head-dims=16", "--seqlen=32", "--hidden=32", f"--output={tmp_path}/trained.jsonl"])
    rows = read(tmp_path / "trained.jsonl")
    from foveal_bench.trained import programs

    assert [row["case"] for row in rows] == [f"{name} d16 {program[0]}" for program in programs(2, 32) for name in ("forward", "backward")]
    assert all(row[key] > 0 for row in rows for key in ("ms", "plain_ms", "short_ms", "short_plain_ms"))
    small = ["--device=cpu", "--head-dims=16", "--seqlen=32", "--hidden=32", "--programs=softcap 30,full", f"--output={tmp_path}/some.jsonl"]
    main(["trained", f"--library={LIBRARY}", *small])
    assert {row["name"] for row in read(tmp_path / "some.jsonl")} == {name for name, *_ in programs(2, 32) if name == "softcap 30" or name.startswith("full")}


def fields_of_header(name):
    """(name, bytes) of each field of a struct of foveal_c.h, in order."""
    text = (ROOT / "include/foveal/foveal_c.h").read_text()
    body = re.sub(r"/\*.*?\*/", "", re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", text, re.S)[1], flags=re.S)
    size = {"int32_t": 4, "int64_t": 8, "uint64_t": 8, "size_t": 8, "double": 8}
    for declaration in filter(None, map(str.strip, body.split(";"))):
        kind, names = re.fullmatch(r"(?:const )?(\w+)(.*)", declaration, re.S).groups()
        for field in names.split(","):
            yield field.strip(" *").removesuffix("[FOVEAL_MAX_RANK]"), (8 if "*" in names else size[kind]) * (6 if "[" in field else 1)


@pytest.mark.parametrize("name", "Tensor Attention Param Call Options".split())
def test_structs_are_those_of_the_header(name):
    from foveal_bench import capi

    own = [(field.removesuffix("_"), ctypes.sizeof(kind)) for field, kind in getattr(capi, name)._fields_]
    assert own == list(fields_of_header(f"foveal_{name.lower()}"))


@needs_library
def test_shapes(tmp_path):
    from foveal_bench import capi, shapes

    library = capi.Library(LIBRARY, "cpu")
    rows = Rows(tmp_path / "shapes.jsonl", {"machine": "m"})
    shapes.shape(library, rows, ("S 24", ("both f32 b1 h2 q24 d16", "S 32")))
    shapes.packed(library, rows, (5, 20, True))
    shapes.reproducible(library, rows, "backward f32 b1 h2 q24 d16 causal")
    found = read(tmp_path / "shapes.jsonl")
    assert [(row["suite"], row["case"].split()[0], row["contender"]) for row in found] == [
        ("shapes", "forward", "foveal"), ("shapes", "backward", "foveal"), ("shapes", "forward", "foveal"), ("shapes", "backward", "foveal"),
        ("reproducible", "backward", "fast"), ("reproducible", "backward", "reproducible")]  # fmt: skip
    speed = 2 * 24 * 24 * 32 * 2 / (found[0]["ms"] * 1e9)  # of 2 heads, head_dim 16 in both products
    assert found[0]["tflops"] == pytest.approx(speed) and found[0]["neighbour"] == "S 32"
    assert len(found[2]["lengths"]) == 5 and found[2]["neighbour"] == "S 2048 causal"


@needs_library
def test_few_queries(tmp_path):
    from foveal_bench import capi, shapes

    library = capi.Library(LIBRARY, "cpu")
    rows = Rows(tmp_path / "few.jsonl", {"machine": "m"})
    shapes.few_queries(library, rows, "forward f32 b2 h4:4 q1:40 d16")
    (both,) = by_case(tmp_path / "few.jsonl").values()
    assert both["foveal"]["difference"] < 1e-5 and both["torch_sdpa"]["ms"] > 0 and both["foveal"]["kv_bytes"] == 2 * 2 * 4 * 2 * 40 * 16


@needs_library
@pytest.mark.parametrize("name", ["softcap", "slopes", "lengths", "softcap_and_lengths"])
def test_programs_of_few_queries_are_those_of_flex_attention(name):
    import torch
    from foveal_bench import capi, shapes
    from foveal_bench.case import parse
    from torch.nn.attention.flex_attention import flex_attention

    (case,) = parse(f"forward f32 b3 h4:2 q2:40 d16 score={name}", "x")
    passes = capi.Passes(capi.Library(LIBRARY, "cpu"), case)
    ours, flex, keys = shapes.program(case, "cpu")
    passes.plan(False, **ours).run()
    expected = flex_attention(*(passes.tensors[name].transpose(1, 2) for name in "qkv"), **flex).transpose(1, 2)
    assert capi.compare(name, [passes.tensors["out"]], [expected]) < 1e-5
    assert (keys < 3 * 40) == ("lengths" in name)
    plain = capi.sdpa(*(passes.tensors[name].transpose(1, 2) for name in "qkv"), causal=False)().transpose(1, 2)
    with pytest.raises(RuntimeError, match="results differ"):
        capi.compare(name, [passes.tensors["out"]], [torch.zeros_like(plain) + 2 * plain])


def test_lines_of_the_gpu_verbs_parse():
    from foveal_bench import shapes
    from foveal_bench.case import parse

    lines = [line for line, _ in shapes.SHAPES.values()] + shapes.REPRODUCIBLE + shapes.FEW_QUERIES + shapes.FEW_QUERIES_SCORES
    assert all(parse(line, "x") for line in lines)
    assert all(neighbour is None or neighbour in shapes.SHAPES for _, neighbour in shapes.SHAPES.values())


# ---- other processes ----


def test_first_call(tmp_path, monkeypatch):
    from foveal_bench import first_call

    monkeypatch.setattr(first_call, "HEAD_DIMS", (64,))
    stand_in = f"#!{sys.executable}\n" + """
import os, sys, time
assert sys.argv[1] == "emit" and not os.path.exists(os.environ["FOVEAL_CACHE_DIR"])
assert ("grad" in sys.argv[-1]) == ("t[head" in sys.argv[-1] and sys.argv[-1].startswith("backward"))
begin = time.process_time()
while time.process_time() < begin + (0.3 if sys.argv[0].endswith("old") else 0): pass
"""
    new, old = program(tmp_path / "new", stand_in), program(tmp_path / "old", stand_in)
    main(["first-call", f"--command={new}", f"--before={old}", "--turns=1", f"--output={tmp_path}/first.jsonl"])
    cases = by_case(tmp_path / "first.jsonl")
    seconds = {who: sum(both[who]["cpu_s"] for both in cases.values()) for who in ("foveal", "before")}
    assert len(cases) == 8 and seconds["before"] > seconds["foveal"] + 1 and seconds["foveal"] > 0


def test_distributed_over_gloo(tmp_path, monkeypatch):
    words = ["distributed", "--device=cpu", "--gpus=2", "--cases=table", "--tokens=512", f"--output={tmp_path}/two.jsonl"]
    monkeypatch.setattr(sys, "argv", ["foveal-bench", *words])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(words) == 0
    rows = {tuple([row["case"].split()[0], row["contender"]]): row for row in read(tmp_path / "two.jsonl")}
    assert set(rows) == {(name, who) for name in ("forward", "both") for who in ("one device", "foveal")}
    ours = rows["both", "foveal"]
    # The median of quotients by turns, which is not that of medians where another process runs meanwhile.
    assert ours["efficiency"] == pytest.approx(rows["both", "one device"]["ms"] / 2 / ours["ms"], rel=0.4)
    assert set(ours["differences"]) == {"out", "dq", "dk", "dv", "rel"} and max(ours["differences"].values()) < 0.02


def test_distributed_says_that_a_rank_failed(tmp_path, monkeypatch):
    words = ["distributed", "--device=cpu", "--gpus=2", "--cases=causal", "--tokens=64", f"--output={tmp_path}/two.jsonl"]
    monkeypatch.setattr(sys, "argv", ["foveal-bench", *words])
    assert main(words) != 0


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_models_agree_and_failures_are_rows(tmp_path):
    words = ["models", "--tiny", "--device=cpu", "--dtype=f32", "--seqlen=32", "--batch=2", "--steps=2", "--warmup=1", f"--output={tmp_path}/models.jsonl"]
    main([*words, "--models=t5", "--attention=eager,foveal"])
    ((case, both),) = by_case(tmp_path / "models.jsonl").items()
    assert case == "t5 tiny f32 b2 s32" and both["foveal"]["transformers"] and both["foveal"]["torch"]
    eager, ours = both["eager"], both["foveal"]
    assert ours["ms"] > 0 and ours["peak_bytes"] > 0 and len(ours["losses"]) == 3
    assert ours["losses"] == pytest.approx(eager["losses"], abs=1e-4)

    main([*words, "--models=llama", "--attention=eager", "--timeout=0.1"])
    assert read(tmp_path / "models.jsonl")[-1]["refused"] == "more than 0.1 s"
    with pytest.raises(SystemExit, match="unknown: bert"):
        main([*words, "--models=bert"])


NVCC = """
import pathlib, stat, sys
words = sys.argv[1:]
out = pathlib.Path(words[words.index("-o") + 1])
if "-c" in words:
    out.write_text("FOVEAL" if "foveal_att.cpp" in words[words.index("-c") + 1] else "")
elif "own.o" in " ".join(words) and FAIL_OWN:
    sys.exit("ld: error: no cublas here")
else:
    ms = 10 if "foveal.o" in " ".join(words) else 20
    out.write_text("#!" + sys.executable + '''
for step in range(1, 13):
    print(f"step {step:4d}/12 | loss {11 - step / 10:.6f} (+0.0z)| norm 1.0 (+0.0z)| lr 6e-04 | ''' + str(ms) + '''.00 ms | 10.0% bf16 MFU | 1 tok/s")
''')
    out.chmod(out.stat().st_mode | stat.S_IXUSR)
"""


@pytest.mark.parametrize("fail_own", [False, True])
def test_llmc(tmp_path, monkeypatch, fail_own):
    (tmp_path / "llmc/llmc").mkdir(parents=True)
    (tmp_path / "llmc/train_gpt2.cu").write_text("")
    (tmp_path / "llmc/llmc/cuda_utils.cuh").write_text("f(cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId);")
    (tmp_path / "foveal/include/foveal").mkdir(parents=True)
    (tmp_path / "foveal/include/foveal/foveal_c.h").write_text("")
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin/nvcc", f"#!{sys.executable}\nFAIL_OWN = {fail_own}\n{NVCC}")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    words = ["llmc", f"--llmc={tmp_path}/llmc", f"--foveal={tmp_path}/foveal", "--batch=2", "--seqlen=64", "--steps=12", f"--build={tmp_path}/build"]
    main([*words, f"--output={tmp_path}/llmc.jsonl"])
    rows = read(tmp_path / "llmc.jsonl")
    assert "cudaMemLocation" in (tmp_path / "build/llm.c/llmc/cuda_utils.cuh").read_text()
    ours = [row for row in rows if row["contender"] == "foveal"]
    assert [row["turn"] for row in ours] == [0, 1] and all(row["ms"] == 10 and row["tokens_per_second"] == 12800 and len(row["losses"]) == 12 for row in ours)
    own = [row for row in rows if row["contender"] == "own"]
    assert [row.get("refused") for row in own] == (["ld: error: no cublas here"] if fail_own else [None, None])
    with pytest.raises(SystemExit, match="--steps=10"):
        main([*words, "--steps=10"])


# ---- reports of other programs ----


def test_keep(tmp_path):
    lines = [
        {"line": "forward f32 b1 h1 q24:8 d8", "kernel": "cpu.avx2.f32", "pass": True, "refused": False, "tensors": [{"max_error": 1.0, "max_bound": 4.0}]},
        {"line": "forward f32 b1 h1 q64 d8", "kernel": "cpu.avx2.f32", "pass": False, "refused": False, "tensors": [{"max_error": 9.0, "max_bound": 4.0}]},
        {"line": "forward bf16 b1 h1 q8 d8", "kernel": "", "pass": False, "refused": True, "tensors": []},
    ]
    errors = {"first_seed": 1, "problems": 2, "checks": 3, "refused": 4, "failures": 0, "seconds": 5, "worst": 0.5, "worst_line": "x",
              "rows": [{"dtype": "f32", "target": "avx2", "output": "dq", "tensors": 6, "median": 0.1, "p999": 0.2, "worst": 0.3}]}  # fmt: skip
    programs = {"first_seed": 1, "programs": 2, "seconds": 3, "findings": 0, "compared": {"value": 7}}
    first = {"problem": "bf16 b4", "context_ms": 1.5, "second_both_ms": 2.5, "kernels_on_disk_before": 0, "kernels_shipped": 96, "nvrtc": "13.0", "device": "H9"}
    random = {"command": ["check", "--programs", "2", "--seed", "5"], "device": "H9", "check": {"results": [
        {"line": "forward bf16 q4", "status": "pass", "kernel": "cuda.sm90.bf16.forward"}, {"line": "forward bf16 q5", "status": "not run"}]}}  # fmt: skip
    soak = {"first_seed": 1, "minutes": 15.0, "problems": 9, "steps": 27, "memory_judged": True, "compared": 3, "changed": 0, "programs": 2, "kernels": 5, "refused_problems": 1,
            **{f"{where}{when}_mb": 1.5 for where in ("", "device_") for when in ("first", "least", "most", "last")}}  # fmt: skip
    for suite, report in (("checks", lines), ("errors", errors), ("programs", programs), ("soak", soak), ("first-call-gpu", first), ("programs-gpu", random)):
        (tmp_path / "report.json").write_text(json.dumps(report))
        main(["keep", suite, str(tmp_path / "report.json"), "--made-by", f"make {suite}", f"--output={tmp_path}/kept.jsonl"])
    rows = {(row["suite"], row["case"]): row for row in read(tmp_path / "kept.jsonl")}
    assert all(row["command"] == f"make {suite}" and row["commit"] for (suite, _), row in rows.items())
    checked = rows["checks", "f32 avx2: make checks"]
    assert (checked["passed"], checked["refusals"], checked["failures"], checked["worst"], checked["longest"]) == (1, 0, 1, 0.25, 64)
    assert rows["checks", "bf16 refused: make checks"]["refusals"] == 1
    assert rows["errors", "f32 avx2 dq"]["p999"] == 0.2 and rows["errors", "all"]["refusals"] == 4 and rows["programs", "all"]["counts"] == {"value": 7}
    assert rows["soak", "all"]["device_most_mb"] == 1.5 and rows["soak", "all"]["refused_problems"] == 1
    assert rows["programs-gpu", "bf16 sm90"]["counts"] == {"pass": 1} and rows["programs-gpu", "bf16 sm90"]["first_seed"] == 5
    assert {row["machine"] for (suite, _), row in rows.items() if suite in ("first-call-gpu", "programs-gpu")} == {"H9"}
    assert rows["first-call-gpu", "bf16 b4"]["phases_ms"] == {"context": 1.5, "second_both": 2.5}


SUPPORT = """| forward / backward | cuda sm90 | cpu avx2 |
|---|---|---|
| plain | bf16 f16 | all |
| backward: fused | bf16 f16 / none | all |
"""
ARCHITECTURES = """| architecture | pass | kernels | most registers | most shared memory of a CTA | of |
|---|---|---|---|---|---|
| sm_80 (A100) | forward | 1 | 185 | 86 KiB | 163 KiB |

NVRTC 13.0
"""


def test_keep_of_tables(tmp_path):
    for suite, report in (("support", SUPPORT), ("architectures", ARCHITECTURES)):
        (tmp_path / "table").write_text(report)
        main(["keep", suite, str(tmp_path / "table"), f"--output={tmp_path}/kept.jsonl"])
    *taken, compiled = read(tmp_path / "kept.jsonl")
    assert [(row["case"], row["contender"], row["forward"], row["backward"]) for row in taken] == [
        ("plain", "cuda sm90", "bf16 f16", "bf16 f16"), ("plain", "cpu avx2", "all", "all"),
        ("backward: fused", "cuda sm90", "bf16 f16", "none"), ("backward: fused", "cpu avx2", "all", "all")]  # fmt: skip
    assert compiled["case"] == "forward sm_80 (A100)"
    (tmp_path / "table").write_text(SUPPORT.replace("cpu avx2", "cpu neon"))
    main(["keep", "support", str(tmp_path / "table"), "--emulated=qemu", f"--output={tmp_path}/emulated.jsonl"])
    assert {(row["machine"], row["contender"]) for row in read(tmp_path / "emulated.jsonl")} == {("emulated by qemu", "cpu neon")}
    assert [compiled[name] for name in ("kernels", "registers", "shared_kib", "shared_limit_kib", "nvrtc")] == [1, 185, 86, 163, "13.0"]


FUZZ = r"""
import sys
print("stat::number_of_executed_units: 123\nstat::peak_rss_mb:              45", file=sys.stderr)
if "-max_total_time=7" in sys.argv:
    sys.exit("SUMMARY: libFuzzer: deadly signal")
"""


@pytest.mark.parametrize(("seconds", "finding"), [(1, ""), (7, "libFuzzer: deadly signal")])
def test_fuzzing_writes_rows(tmp_path, seconds, finding):
    (tmp_path / "tests/fuzz").mkdir(parents=True)
    program(tmp_path / "tests/fuzz/fuzz_line", f"#!{sys.executable}\n{FUZZ}")
    done = subprocess.run([sys.executable, ROOT / "tools/fuzz.py", tmp_path, str(seconds), "--targets=line", f"--out={tmp_path}/fuzz.jsonl"], capture_output=True, text=True)
    assert done.returncode == bool(finding), done.stderr
    (row,) = read(tmp_path / "fuzz.jsonl")
    assert (row["suite"], row["case"], row["executions"], row["peak_mb"], row["finding"]) == ("fuzz", "line", 123, 45, finding)
    assert row["command"] == f"./dev fuzz {seconds}" and row["machine"]


# Files from before rows had to have these fields.
OLD = {
    "commit": {"errors-cpu", "fuzz", "h200-far-backward", "h200-far-forward", "h200-reads", "h200-schedules", "h200-strange"},
    "command": {"errors-cpu", "first-call", "fuzz", "h200-schedules"},
}


@needs_results
@pytest.mark.parametrize("path", sorted((ROOT / "bench/results").glob("*.jsonl")), ids=lambda path: path.stem)
def test_rows_say_what_was_measured_and_how_to_repeat_it(path):
    for row in read(path):
        assert row["machine"]
        for field, old in OLD.items():
            assert row.get(field) or ("date" not in row and path.stem in old), (field, row)
            assert row.get(field) != "unknown", row


@needs_results
def test_tables_are_those_of_the_rows():
    """Pages stay as write_tables.py makes them, and it needs none of the packages that measure."""
    code = "import sys; sys.modules['torch'] = sys.modules['tqdm'] = None; sys.argv[1:] = ['--check']; import runpy; runpy.run_path('tools/write_tables.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_command_does_not_say_where_things_lie() -> None:
    from foveal_bench import machine

    words = ["llmc", "--llmc", "/home/someone/llm.c", "--output=/tmp/a/rows.jsonl", "bench/suites/peers-cpu.txt"]
    assert machine.command(words) == "foveal-bench llmc --llmc llm.c --output=rows.jsonl bench/suites/peers-cpu.txt"
