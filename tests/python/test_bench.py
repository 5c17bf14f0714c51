"""The benchmark harness: reads suites, times interleaved, refuses wrong answers, and makes its report from result files alone."""

import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))

from foveal_bench import golden, report, rivals  # noqa: E402
from foveal_bench.case import parse, read_suite  # noqa: E402
from foveal_bench.run import run  # noqa: E402

FOLDER = pathlib.Path(__file__).parents[2] / "bench" / "suites"
SUITES = [FOLDER / f"{name}.txt" for name in ("peers-cpu", "scores-cpu", "fa-gpu", "scores-gpu")]  # the others are for the foveal command


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_suites_parse(path):
    assert len(read_suite(path.read_text(), path.stem)) > 10


def test_a_bad_line_names_the_word():
    with pytest.raises(ValueError, match="wrong"):
        parse("forward f32 b1 h2 q8 d8 wrong", "x")
    with pytest.raises(ValueError, match="head_dim"):
        parse("forward f32 b1 h2 q8", "x")


def test_run_and_report(tmp_path):
    suite = tmp_path / "tiny.txt"
    suite.write_text("both f32 b1 h4:2 q40 d16 causal\nbackward f32 b1 h2 q40 d16 causal score=relative_table\n")
    results = tmp_path / "results.jsonl"
    assert run(suite, "cpu", 1, results, {"foveal", "torch_sdpa"}, 0.01) == 0
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert {row["contender"] for row in rows if "ms" in row} == {"foveal", "torch_sdpa"}
    assert all(row["machine"] and row["commit"] and row["command"] for row in rows)
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.report([results], tmp_path / "report", readme)
    text = readme.read_text()
    assert "| backward f32 h4:2 d16 causal |" in text and text.startswith("before") and text.endswith("after\n") and "old" not in text
    assert "data:image/png" in (tmp_path / "report" / "index.html").read_text()


def test_a_wrong_answer_is_refused():
    (case,) = parse("backward f32 b1 h2 q24 d8 causal", "x")
    tensors = case.tensors("cpu")
    gold = golden.compute(case, tensors, "cpu")
    from foveal_bench.rivals import foveal as ours

    job = ours.prepare("foveal", case, tensors, "cpu")
    assert golden.check(case, gold, job) is None
    wrong = rivals.Job(job.forward, lambda: [g * 1.001 for g in job.backward()])
    assert "dq" in golden.check(case, gold, wrong)
