"""`python -m foveal` says what is here, tests it, and its exit status tells whether something is wrong."""

import dataclasses

import foveal
from foveal import __main__ as main


def test_self_test_of_this_machine(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["foveal", "--seconds", "60"])
    monkeypatch.setattr(main, "LINES", main.LINES[:4])
    assert main.main() == 0
    text = capsys.readouterr().out
    assert foveal.__version__ in text and "cpu scalar       yes" in text
    assert "cpu scalar       4 passed" in text and "FAILED" not in text


def test_a_wrong_result_is_told(monkeypatch, capsys):
    check = foveal.check
    monkeypatch.setattr(main, "LINES", main.LINES[:1])
    monkeypatch.setattr(foveal, "check", lambda line: dataclasses.replace(check(line), passed=False))
    assert not main.self_test(60)
    assert "1 FAILED" in capsys.readouterr().out

    def fails(line):
        raise foveal.Error("device lost")

    monkeypatch.setattr(foveal, "check", fails)
    assert not main.self_test(60)
    assert "device lost" in capsys.readouterr().out


def test_lines_are_problems():
    for line in main.LINES:
        assert not foveal.check(line + " backend=reference").failure, line
