"""`python -m foveal` says what is here, tests it, and its exit status tells whether something is wrong."""

import dataclasses
import os
import subprocess
import sys

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


def test_it_says_which_sources_and_which_cpu(monkeypatch, tmp_path):
    monkeypatch.setattr(main, "__file__", str(tmp_path / "__main__.py"))
    assert main.commit() == "commit not recorded"
    (tmp_path / "commit").write_text("abc1234-dirty\n")
    assert main.commit() == "commit abc1234-dirty"

    def said(text):
        monkeypatch.setattr(main.pathlib.Path, "read_text", lambda path: text)
        return main.cpu_name()

    x86 = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: A CPU\nstepping\t: 1\nflags\t\t: fpu avx2 avx512f\nprocessor\t: 1\nmodel\t\t: 18\n"
    assert said(x86) == "A CPU family 25 model 17 stepping 1 (avx2 avx512f)"
    arm = "processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 1\n"
    assert said(arm).endswith(" implementer 0x41 variant 0x0 part 0xd4f revision 1 (asimd bf16)")
    assert said("") and "(" not in said("")


def test_lines_are_problems():
    for line in main.LINES:
        assert not foveal.check(line + " backend=reference").failure, line


def test_the_cache_is_where_the_library_has_it(tmp_path):
    def said(**variables):
        other = {name: value for name, value in os.environ.items() if name not in ("FOVEAL_CACHE_DIR", "XDG_CACHE_HOME", "HOME")}
        command = [sys.executable, "-c", "import foveal.__main__ as main; print(main.cache())"]
        return subprocess.run(command, env={**other, **variables}, capture_output=True, text=True, check=True).stdout

    home, shared, own = str(tmp_path), str(tmp_path / "xdg"), str(tmp_path / "own")
    assert said(HOME=home).startswith(f"{home}/.cache/foveal: 0 kernels, 0.0 MiB")
    assert said(HOME=home, XDG_CACHE_HOME=shared).startswith(f"{shared}/foveal: 0 kernels, 0.0 MiB")
    assert said(HOME=home, XDG_CACHE_HOME="relative").startswith(f"{home}/.cache/foveal: 0 kernels, 0.0 MiB")
    assert said(HOME=home, XDG_CACHE_HOME=shared, FOVEAL_CACHE_DIR=own).startswith(f"{own}: 0 kernels, 0.0 MiB")
    assert said(HOME=home, FOVEAL_CACHE_DIR="").startswith("off")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.kernel").write_bytes(bytes(2**20))
    (tmp_path / "own" / "of the user").write_text("")
    assert said(FOVEAL_CACHE_DIR=own) == f"{own}: 1 kernels, 1.0 MiB\n"
    (tmp_path / "own").chmod(0o777)
    assert said(FOVEAL_CACHE_DIR=own) == f"not used, others may write into it; expected a mode such as 0700: {own}\n"
    assert said(XDG_CACHE_HOME="relative").startswith("none") and said(HOME="relative").startswith("none")


def test_kernels_that_came_with_the_library_are_told(tmp_path):
    def said(folder):
        command = [sys.executable, "-m", "foveal", "--no-test"]
        text = subprocess.run(command, env={**os.environ, "FOVEAL_KERNELS_DIR": str(folder)}, capture_output=True, text=True, check=True).stdout
        return next(line for line in text.splitlines() if line.startswith("kernels"))

    (tmp_path / "compiler").write_text("12.9 of a test\n")
    (tmp_path / "key.kernel").write_text("")
    tmp_path.chmod(0o755)
    assert said(tmp_path) == f"kernels  {tmp_path}: 1, compiled by NVRTC 12.9 of a test"
    tmp_path.chmod(0o777)
    assert said(tmp_path) == f"kernels  not used, others may write into it: {tmp_path}"
    assert said("") == "kernels  FOVEAL_KERNELS_DIR is empty: kernels are compiled when they are first needed, and kept"
    assert said(tmp_path / "typo") == f"kernels  not used, No such file or directory: {tmp_path}/typo"
