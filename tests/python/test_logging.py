"""foveal.logging: what is said, when, and how it is switched on."""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest

import foveal


def attend(seqlen, score=None):
    q = np.zeros((1, seqlen, 2, 4), np.float32)
    foveal.attention(q, q, q, score, foveal.causal())


def test_plans_are_said_once_for_each_look(caplog):
    caplog.set_level(logging.DEBUG, "foveal.plan")
    attend(23)
    attend(23)
    (record,) = [r for r in caplog.records if r.name == "foveal.plan"]
    assert "q23" in record.getMessage() and "cpu." in record.getMessage() and "tiles " in record.getMessage()


def test_programs_are_said_once(caplog):
    caplog.set_level(logging.DEBUG, "foveal.compile")
    for seqlen in (24, 25):
        attend(seqlen, "score * 1.25")
    (record,) = [r for r in caplog.records if r.name == "foveal.compile"]
    assert "1.25 * score" in record.getMessage()


def test_routes_are_said(caplog):
    torch = pytest.importorskip("torch")
    import foveal.torch

    caplog.set_level(logging.DEBUG, "foveal.route")
    q = torch.zeros(1, 1, 4, 8)
    with foveal.torch.patch():
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert [r.getMessage() for r in caplog.records] == ["scaled_dot_product_attention: foveal's"]


def test_the_environment_switches_topics_on():
    code = "import numpy as np, foveal; q = np.zeros((1, 3, 1, 4), np.float32); foveal.attention(q, q, q)"
    for topics, wanted in (("plan", ["foveal.plan"]), ("plan, compile", ["foveal.compile", "foveal.plan"]), ("", []), (",", [])):
        said = subprocess.run([sys.executable, "-c", code], env={**os.environ, "FOVEAL_LOG": topics}, capture_output=True, text=True, check=True).stderr
        assert sorted(line.split(":")[0] for line in said.splitlines()) == wanted
    wrong = subprocess.run([sys.executable, "-c", code], env={**os.environ, "FOVEAL_LOG": "plans"}, capture_output=True, text=True)
    assert "FOVEAL_LOG: topic 'plans'; expected some of plan, compile, route" in wrong.stderr


def test_enable_and_disable(capsys):
    foveal.logging.enable("plan")
    attend(26)
    foveal.logging.disable()
    attend(27)
    said = capsys.readouterr().err
    assert "q26" in said and "q27" not in said
