"""Distributed tensors (DTensor) at torch's doors: four ranks, right or refused."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
HERE = pathlib.Path(__file__).parent


@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="torch without Gloo")
def test_shards_of_batch_and_heads(tmp_path):
    command = [sys.executable, HERE / "sharded_rank.py", f"file://{tmp_path / 'meeting'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = dict(env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ranks = [subprocess.Popen([*command, str(rank), "4"], **pipe) for rank in range(4)]
    try:
        said = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * 4, "\n".join(said)
