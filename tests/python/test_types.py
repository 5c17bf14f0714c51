"""mypy --strict on calls as users write them, and on the package: tests/typing/calls.py."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("mypy")
ROOT = pathlib.Path(__file__).parents[2]
STUB = ROOT / "python" / "foveal" / "_core.pyi"


@pytest.mark.skipif(not STUB.exists(), reason="the extension's stub is not beside it (./dev python builds it)")
@pytest.mark.parametrize("what", [["tests/typing/calls.py"], ["-p", "foveal"]], ids=["calls", "package"])
def test_types(what):
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    environment = {**os.environ, "MYPYPATH": str(ROOT / "python")}
    found = subprocess.run([sys.executable, "-m", "mypy", "--strict", *what], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    own = [line for line in found.stdout.splitlines() if what[0] == "-p" or line.startswith(what[0])]
    assert found.returncode in (0, 1) and not [line for line in own if ": error:" in line], found.stdout + found.stderr


def test_keywords_that_no_function_has_are_named():
    import numpy as np

    import foveal

    q = np.zeros((1, 4, 1, 8), np.float32)
    for function, arguments in (
        (foveal.attention, (q, q, q)), (foveal.forward, (q, q, q)), (foveal.plan, (q, q, q)), (foveal.explain, (q, q, q)),
        (foveal.check, (q, q, q)), (foveal.backward, (q,) * 6),
    ):  # fmt: skip
        for keyword, expected in (("is_causal", r"mask=foveal.causal\(\)"), ("softmax_scale", "scale"), ("scal", "scale")):
            with pytest.raises(TypeError, match=f"{function.__name__}: {keyword}: no argument of this function; expected {expected}"):
                function(*arguments, **{keyword: True})


def test_numbers_that_are_none_are_named():
    import numpy as np

    import foveal

    q = np.zeros((1, 4, 1, 8), np.float32)
    for name, value, message in (
        ("scale", "0.1", "attention: scale: found str '0.1'; expected a number"),
        ("scale", q, r"attention: scale: found numpy array of float32\[1, 4, 1, 8\]; expected a number"),
        ("dropout_p", "0.1", "attention: dropout_p: found str '0.1'; expected a number"),
        ("q_offset", 1.5, "attention: q_offset: found float 1.5; expected an integer"),
    ):
        with pytest.raises(TypeError, match=message):
            foveal.attention(q, q, q, **{name: value})
    assert foveal.attention(q, q, q, scale=np.float32(0.1), q_offset=np.int64(1)).shape == q.shape
