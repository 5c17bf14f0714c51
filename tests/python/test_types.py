"""mypy --strict on calls as users write them, and on the package: tests/typing/calls.py."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("mypy")
ROOT = pathlib.Path(__file__).parents[2]


def typed_package(tmp_path):
    """A folder with the package and its extension's stub, which a build leaves in the tree or beside the installed package."""
    import foveal

    if (ROOT / "python" / "foveal" / "_core.pyi").exists():
        return ROOT / "python"
    stub = pathlib.Path(foveal.__file__).parent / "_core.pyi"
    if not stub.exists():
        pytest.skip("the extension was built without its stub")
    shutil.copytree(ROOT / "python" / "foveal", tmp_path / "foveal")
    shutil.copy(stub, tmp_path / "foveal")
    return tmp_path


@pytest.mark.parametrize("what", [["tests/typing/calls.py"], ["-p", "foveal"], ["bench/foveal_bench"]], ids=["calls", "package", "bench"])
def test_types(what, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    environment = {**os.environ, "MYPYPATH": str(typed_package(tmp_path))}
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


def made_inside(s, b, h, i, j):
    import numpy

    return s + numpy.array([1.0, 2.0, 3.0, 4.0])[j]


def wrong_values():
    import numpy as np

    import foveal

    q = np.zeros((1, 4, 1, 8), np.float32)
    cu = np.array([0, 4], np.int32)
    return {
        "a masked array": (dict(k=np.ma.masked_array(q)), "k: a NumPy masked array; expected a plain array"),
        "a masked parameter": (dict(score_mod="score + m[kv_idx]", params={"m": np.ma.masked_array(q[0, :, 0, 0])}), "NumPy masked array"),
        "a list of logits": (dict(sink=[0.0]), "attention: sink: found list.*; expected an array"),
        "a number among arrays": (dict(score_mod="score * t", params={"t": 2.0}), r"attention: (t|params\['t'\]): found float.*; expected an array"),
        "one array of lengths": (dict(q=q[0], k=q[0], v=q[0], cu_seqlens=cu, max_seqlens=(4, 4)), "cu_seqlens: found .*; expected a pair"),
        "a text as a flag": (dict(deterministic="no"), "attention: deterministic: found str 'no'; expected True or False"),
        "a number as a flag": (dict(checked=0.5), "attention: checked: found float 0.5; expected True or False"),
        "a text as options": (dict(options="cpu"), r"attention: options: found str.*; expected foveal.Options\("),
        "an array made inside": (dict(score_mod=made_inside), "score_mod: a symbol indexes an array that tracing cannot see"),
        "a mask without its call": (dict(mask=foveal.causal), r"mask: found foveal.causal itself; expected what it makes: foveal.causal\(\)"),
    }  # fmt: skip


@pytest.mark.parametrize("name", wrong_values())
def test_wrong_values_are_named(name):
    import numpy as np

    import foveal

    q = np.zeros((1, 4, 1, 8), np.float32)
    change, message = wrong_values()[name]
    with pytest.raises(TypeError, match=message):
        foveal.attention(**{**dict(q=q, k=q, v=q), **change})
    jax = pytest.importorskip("jax")
    import foveal.jax

    convert = lambda x: jax.numpy.asarray(x) if type(x) is np.ndarray else x  # noqa: E731
    with pytest.raises(TypeError, match=message.replace("ndarray", "ArrayImpl")):
        foveal.jax.attention(**{name: convert(x) for name, x in {**dict(q=q, k=q, v=q), **change}.items()})


def test_seeds_of_jax_are_integers():
    jax = pytest.importorskip("jax")
    import foveal.jax

    q = jax.numpy.zeros((1, 4, 1, 8))
    for seed in ("a", 1.5):
        with pytest.raises(TypeError, match=f"attention: seed: found {type(seed).__name__} {seed!r}; expected an integer"):
            foveal.jax.attention(q, q, q, dropout_p=0.1, seed=seed)


def test_no_module_of_the_package_is_checked_less_strictly():
    tomllib = pytest.importorskip("tomllib")
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    named = [name for override in overrides for name in ([override["module"]] if isinstance(override["module"], str) else override["module"])]
    assert [name for name in named if name.startswith("foveal.")] == ["foveal._core"]  # generated
