"""The script that measures training steps of transformers models, with tiny models on the CPU."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench/transformers_steps.py"


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_rows_agree_and_failures_are_rows(tmp_path):
    output = tmp_path / "steps.json"
    command = [sys.executable, SCRIPT, "--tiny", "--device=cpu", "--dtype=f32", "--seqlen=32", "--batch=2", "--steps=2", "--warmup=1"]
    subprocess.run([*command, "--models=t5", "--attention=eager,foveal", f"--output={output}"], check=True)
    result = json.loads(output.read_text())
    assert {"device", "torch", "transformers", "commit", "command", "seqlen", "batch", "dtype"} <= result.keys()
    rows = {(row["model"], row["attention"]): row for row in result["rows"]}
    assert len(rows) == 2
    eager, ours = rows["t5", "eager"], rows["t5", "foveal"]
    assert ours["ms"] > 0 and ours["peak_bytes"] > 0 and len(ours["losses"]) == 3
    assert ours["losses"] == pytest.approx(eager["losses"], abs=1e-4)

    subprocess.run([*command, "--models=llama", "--attention=eager", "--timeout=0.1", f"--output={output}"], check=True)
    assert "failed" in json.loads(output.read_text())["rows"][0]
