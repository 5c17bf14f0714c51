"""The benchmark harness: reads suites, times interleaved, refuses wrong answers, and makes its report from result files alone."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))

from foveal_bench import golden, plots, rivals  # noqa: E402
from foveal_bench.__main__ import main  # noqa: E402
from foveal_bench.case import parse, read_suite  # noqa: E402
from foveal_bench.results import Rows, read  # noqa: E402

FOLDER = pathlib.Path(__file__).parents[2] / "bench" / "suites"
SUITES = [FOLDER / f"{name}.txt" for name in ("peers-cpu", "decode-cpu", "flex-cpu", "scores-cpu", "fa-gpu", "peers-gpu", "scores-gpu")]  # the others are for the foveal command


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_suites_parse(path):
    assert len(read_suite(path.read_text(), path.stem)) > 9


def test_a_bad_line_names_the_word():
    with pytest.raises(ValueError, match="wrong"):
        parse("forward f32 b1 h2 q8 d8 wrong", "x")
    with pytest.raises(ValueError, match="head_dim"):
        parse("forward f32 b1 h2 q8", "x")


def test_run_and_report(tmp_path):
    suite = tmp_path / "tiny.txt"
    suite.write_text('both f32 b1 h4:2 q40 d16 mask="causal()"\nboth f32 b1 h4:2 q20 d16 mask="causal()"\n')
    scores = tmp_path / "scores-tiny.txt"
    scores.write_text('both f32 b1 h2 q40 d16 mask="causal()"\nbackward f32 b1 h2 q40 d16 mask="causal()" score=relative_table\n')
    results = tmp_path / "results.jsonl"
    assert main(["run", str(suite), str(scores), "--contenders=foveal,torch_sdpa,unfused", "--budget=0.01", f"--output={results}"]) == 0
    rows = read(results)
    assert {row["contender"] for row in rows if "ms" in row} == {"foveal", "torch_sdpa", "unfused"}
    assert all(row["machine"] and row["commit"] and row["command"] for row in rows)
    assert all(row["call_ms"] > 0 and row["first_call_s"] > 0 for row in rows if "ms" in row)
    main(["report", str(results), f"--output={tmp_path}/report"])
    text = (tmp_path / "report/results.md").read_text()
    assert "| backward f32 b1 h4:2 q40 d16 causal |" in text and "(ratio-tiny" in text
    assert text.count("| tiny | backward | f32 | 2 |") == 1  # no table twice
    pages = {path.suffix: path for path in (tmp_path / "report").iterdir()}
    kinds = {path.name.partition("-")[0] for path in (tmp_path / "report").glob("*.png")}
    assert {"speed", "ratio", "scores"} <= kinds and {".md", ".html", ".png"} <= pages.keys()
    page = pages[".html"].read_text()
    assert "data:image/png" in page and "src=\"http" not in page and "score=relative_table" in page


def test_contenders_that_are_not_here_are_refused(tmp_path, capsys):
    (tmp_path / "tiny.txt").write_text("forward f32 b1 h2 q40 d16\n")
    assert main(["run", str(tmp_path / "tiny.txt"), "--contenders=foveal,nobody,nothing", f"--output={tmp_path}/rows.jsonl"]) == 2
    assert "--contenders nobody,nothing: not on this machine; expected some of foveal, torch_sdpa" in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()


def test_training_steps_are_drawn_and_leave_the_tables_alone(tmp_path):
    rows = Rows(tmp_path / "models.jsonl", {"machine": "a card", "torch": "2", "commit": "c", "command": "x", "date": "d", "threads": None})
    for model in ("t5", "llama"):
        rows.add("models", f"{model} bf16 b4 s2048", contender="sdpa", ms=280.0, peak_bytes=30 << 30)
        rows.add("models", f"{model} bf16 b4 s2048", contender="foveal", **({"ms": 100.0, "peak_bytes": 9 << 30} if model == "t5" else {"refused": "why"}))
    (tmp_path / "tiny.txt").write_text("forward f32 b1 h2 q40 d16\n")
    main(["run", str(tmp_path / "tiny.txt"), "--contenders=foveal", "--budget=0.01", f"--output={tmp_path}/models.jsonl"])
    main(["report", f"{tmp_path}/models.jsonl", f"--output={tmp_path}/report"])
    assert "![Training steps: models, a card](models-a-card.png)" in (tmp_path / "report/results.md").read_text()
    assert (tmp_path / "report/models-a-card.png").stat().st_size > 5000
    assert [plots._without(row) for row in (None, {"refused": "out of memory"}, {"refused": "GPT2 does not support it"})] == ["not\ntried", "failed", "not\noffered"]


def test_overhead_is_measured_in_parts(tmp_path):
    from foveal_bench import tables

    output = tmp_path / "overhead.jsonl"
    main(["overhead", f"--output={output}"])
    rows = read(output)
    ours = [row for row in rows if "beyond_us" in row]
    assert len(ours) >= 6 and all(abs(row["us"] - row["kernel_us"] - row["torch_us"] - row["beyond_us"]) < 0.1 for row in ours)
    assert "beyond both" in "\n".join(tables.host_time(rows))


def test_a_wrong_answer_is_refused():
    (case,) = parse('backward f32 b1 h2 q24 d8 mask="causal()"', "x")
    tensors = case.tensors("cpu")
    gold = golden.compute(case, tensors, "cpu")
    from foveal_bench.rivals import foveal as ours

    job = ours.prepare("foveal", case, tensors, "cpu")
    assert golden.check(case, gold, job) is None
    wrong = rivals.Job(job.forward, lambda: [g * 1.001 for g in job.backward()])
    assert "dq" in golden.check(case, gold, wrong)


@pytest.mark.parametrize(("words", "why"), [
    (["nothing"], "foveal-bench: 'nothing' is no verb; expected one of run, "),
    (["report", "{folder}/missing"], "foveal-bench report: {folder}/missing: No such file or directory"),
    (["report", "{folder}"], "foveal-bench report: {folder}: Is a directory"),
    (["report", "{folder}/wrong"], "foveal-bench report: {folder}/wrong:1: not a row: "),
    (["keep", "soak", "{folder}/wrong"], "foveal-bench keep: {folder}/wrong: no report of soak: "),
    (["keep", "support", "{folder}/bytes"], "foveal-bench keep: {folder}/bytes: no report of support: "),
])  # fmt: skip
def test_what_is_wrong_is_said_without_a_traceback(tmp_path, capsys, words, why):
    (tmp_path / "wrong").write_text("no rows\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    output = ["--output", str(tmp_path / "out")] if len(words) > 1 else []
    assert main([word.format(folder=tmp_path) for word in words] + output) == 2
    assert capsys.readouterr().err.startswith(why.format(folder=tmp_path))
