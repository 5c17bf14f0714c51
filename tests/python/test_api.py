"""foveal.plan, foveal.check, foveal.explain and what they share, on NumPy and, where they are, torch and a GPU."""

import gc

import numpy as np
import pytest

import foveal

try:
    import torch
except ImportError:
    torch = None
PLACES = ["numpy", *(["torch"] if torch else []), *(["cuda"] if torch and torch.cuda.is_available() else [])]
LINE = 'backward f32 b1 h2:1 q40:50 d16 mask="causal()" score="score + rel[head, clamp(kv_idx - q_idx, -4, 4) + 4]" param="rel: real[2, 9] grad"'


def make(place, *shape, dtype="float32", seed=0):
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return values if place == "numpy" else torch.from_numpy(values).to("cuda" if place == "cuda" else "cpu")


def numbers(array):
    return array if isinstance(array, np.ndarray) else array.detach().cpu().double().numpy()


def inputs(place, dtype="float32"):
    return [make(place, 2, 33, 4, 16, dtype=dtype, seed=seed) for seed in range(3)]


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


def test_a_plan_runs_with_the_callers_memory(place):
    q, k, v = inputs(place)
    bias = make(place, 4, 65, seed=3)
    score = lambda s, b, h, i, j: s + bias[h, i - j + 32]  # noqa: E731
    out, lse = foveal.forward(q, k, v, score, foveal.causal())
    plan = foveal.plan(q, k, v, score, foveal.causal())
    assert plan.kernel == plan.explain()["kernel"] and plan.kernel.startswith("cuda" if place == "cuda" else "cpu")
    mine, mine_lse, scratch = make(place, *out.shape), make(place, *lse.shape), plan.workspace()
    assert scratch.nbytes >= plan.workspace_bytes
    plan.run(q=q, k=k, v=v, out=mine, lse=mine_lse, workspace=scratch)
    assert (numbers(mine) == numbers(out)).all() and (numbers(mine_lse) == numbers(lse)).all()
    again = plan.bind(q=q, k=k, v=v, out=mine, lse=mine_lse, workspace=scratch, params={"p0": bias * 0})
    again()
    assert not (numbers(mine) == numbers(out)).all()

    dout = make(place, *out.shape, seed=4)
    expected = foveal.backward(q, k, v, out, lse, dout, score, foveal.causal(), gradients=("p0",), deterministic=True)
    plan = foveal.plan(q, k, v, score, foveal.causal(), backward=True, gradients=("p0",), deterministic=True)
    dq, dk, dv, dbias = (make(place, *t.shape) for t in (q, k, v, bias))
    plan.run(q=q, k=k, v=v, out=out, lse=lse, dout=dout, dq=dq, dk=dk, dv=dv, gradients={"p0": dbias})
    for found, wanted in zip((dq, dk, dv, dbias), (*expected[:3], expected[3]["p0"])):
        assert (numbers(found) == numbers(wanted)).all()


def test_a_plan_names_a_gradient_that_is_absent(place):
    q, k, v = inputs(place)
    bias = make(place, 33)
    out, lse = foveal.forward(q, k, v, lambda s, b, h, i, j: s + bias[j])
    plan = foveal.plan(q, k, v, lambda s, b, h, i, j: s + bias[j], backward=True, gradients=("p0",))
    with pytest.raises(ValueError, match="gradient of p0: absent; the plan expects f32.33."):
        plan.run(q=q, k=k, v=v, out=out, lse=lse, dout=out, dq=q, dk=k, dv=v)


def test_a_plan_refuses_a_workspace_that_it_would_write_beyond(place):
    q, k, v = inputs(place)
    plan = foveal.plan(q, k, v)
    out, lse = make(place, 2, 33, 4, 16), make(place, 2, 4, 33)
    scratch = plan.workspace()
    assert plan.workspace_bytes > 256
    wider = foveal.plan(q, k, v, backward=True).workspace()
    wrong = [(scratch[:256], "256 bytes; expected "), (wider[: 2 * (len(wider) // 2) : 2], "strides .2.; expected contiguous")]
    if isinstance(scratch, np.ndarray):
        wrong += [(np.lib.stride_tricks.as_strided(scratch, strides=(0,)), "strides .0.; expected contiguous"), (scratch[::-1], "strides .-1.; expected contiguous")]
    for workspace, message in wrong:
        for call in (plan.run, lambda **given: plan.bind(**given)()):
            with pytest.raises(ValueError, match="workspace: " + message):
                call(q=q, k=k, v=v, out=out, lse=lse, workspace=workspace)


def test_a_plan_refuses_other_arrays(place):
    q, k, v = inputs(place)
    plan = foveal.plan(q, k, v)
    out, lse = make(place, 2, 33, 4, 16), make(place, 2, 4, 33)
    with pytest.raises(ValueError, match="q: .*the plan expects"):
        plan.run(q=q[:, :32], k=k, v=v, out=out, lse=lse)
    with pytest.raises(ValueError, match="out: "):
        plan.run(q=q, k=k, v=v, lse=lse)
    with pytest.raises(ValueError, match="dq: not a tensor of this pass"):
        plan.run(q=q, k=k, v=v, out=out, lse=lse, dq=q)
    with pytest.raises(ValueError, match="no parameter is called 'x'"):
        foveal.plan(q, k, v, backward=True, gradients=("x",))
    with pytest.raises(ValueError, match="no parameter is called 'x'"):
        plan.run(q=q, k=k, v=v, out=out, lse=lse, params={"x": q})


def test_a_packed_batch_is_planned_too(place):
    q, k, v = (make(place, 20, 2, 16, seed=seed) for seed in range(3))
    cu = np.array([0, 5, 20], np.int32)
    cu = cu if place == "numpy" else torch.from_numpy(cu).to(q.device)
    packed = dict(cu_seqlens=(cu, cu), max_seqlens=(15, 15))
    out, lse = foveal.forward(q, k, v, mask=foveal.causal(), **packed)
    mine, mine_lse = make(place, *out.shape), make(place, *lse.shape)
    foveal.plan(q, k, v, mask=foveal.causal(), **packed).run(q=q, k=k, v=v, out=mine, lse=mine_lse)
    assert (numbers(mine) == numbers(out)).all() and (numbers(mine_lse) == numbers(lse)).all()
    assert foveal.check(q, k, v, mask=foveal.causal(), dout=out, **packed)


def test_check_of_a_problem_line():
    report = foveal.check(LINE)
    assert report and report.passed and not report.failure and report.kernel.startswith("cpu.")
    assert {t["name"] for t in report.tensors} == {"dq", "dk", "dv", "drel"} and "drel: error" in str(report)
    assert all(t["max_error"] <= t["max_bound"] for t in report.tensors)
    with pytest.raises(ValueError, match="forwards"):
        foveal.check("forwards f32 b1 h2 q8 d8")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_check_of_the_callers_arrays(place, dtype):
    q, k, v = inputs(place, dtype)
    gate, sink = make(place, 4, seed=3), make(place, 4, seed=4)
    report = foveal.check(q, k, v, lambda s, b, h, i, j: s * gate[h], foveal.window(9), sink=sink)
    assert report, str(report)
    assert {t["name"] for t in report.tensors} == {"out", "lse"}
    report = foveal.check(q, k, v, lambda s, b, h, i, j: s * gate[h], foveal.window(9), sink=sink, dout=v, gradients=("p0", "sink"))
    assert report, str(report)
    assert {t["name"] for t in report.tensors} == {"dq", "dk", "dv", "dp0", "dsink"}


def test_check_reads_the_callers_values(place):
    """Values, not only shapes: an infinite logit shows in the report's bounds."""
    q, k, v = inputs(place)
    plain, large = foveal.check(q, k, v), foveal.check(q * 30, k, v)
    assert plain and large
    errors = [{t["name"]: t["naive_max_error"] for t in report.tensors}["lse"] for report in (plain, large)]
    assert errors[1] > 3 * errors[0]


def test_explain_says_why():
    q, k, v = inputs("numpy")
    report = foveal.explain(q, k, v, mask=foveal.causal(), backward=True, options=foveal.Options(target="avx2"))
    assert report["kernel"].startswith("cpu.avx2") and report["tiles_empty"] >= 0 and report["problem"].startswith("backward f32")
    with pytest.raises(NotImplementedError, match="cuda"):
        foveal.explain(q, k, v, options=foveal.Options(backend="cuda"))


def test_programs_follow_what_functions_see(place):
    """A trace is kept while nothing that the function sees changes, and only then."""
    q, k, v = inputs(place)

    def attend(table, factor):
        return numbers(foveal.attention(q, k, v, lambda s, b, h, i, j: s * factor + table[h]))

    first, second = make(place, 4, seed=5), make(place, 4, seed=6)
    results = [attend(first, 1.0), attend(first, 2.0), attend(first, 1.0)]
    assert (results[0] == results[2]).all() and not np.allclose(results[0], results[1])
    gated = lambda table: numbers(foveal.attention(q, k, v, lambda s, b, h, i, j: s * table[h]))  # noqa: E731
    assert not np.allclose(gated(first), gated(second))
    first *= 0  # contents may change
    assert np.allclose(gated(first), numbers(foveal.attention(q, k, v, "score * 0")), atol=1e-6)
    for seed in range(20):  # an array at the address of one that is gone is another array
        fresh = make(place, 4, seed=seed)
        assert np.allclose(gated(fresh), numbers(foveal.attention(q, k, v, "score * t[head]", params={"t": fresh})), atol=1e-6)
        del fresh
        gc.collect()


def test_layouts_and_results(place):
    q, k, v = inputs(place)
    expected = numbers(foveal.attention(q, k, v))
    swapped = [(t.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) if place == "numpy" else t.transpose(1, 2).contiguous().transpose(1, 2)) for t in (q, k, v)]
    assert np.allclose(numbers(foveal.attention(*swapped)), expected, atol=1e-6)
    reversed_ = [t[:, ::-1] if place == "numpy" else t.flip(1) for t in (k, v)]
    assert np.allclose(numbers(foveal.attention(q, *reversed_)), expected, atol=1e-6)
    out = foveal.attention(q, k, v)
    assert type(out) is type(q) and out.dtype == q.dtype


def test_bfloat16_of_numpy():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (t.astype(ml_dtypes.bfloat16) for t in inputs("numpy"))
    out = foveal.attention(q, k, v, mask=foveal.causal())
    assert out.dtype == ml_dtypes.bfloat16
    exact = foveal.attention(*(t.astype(np.float64) for t in (q, k, v)), mask=foveal.causal())
    assert np.abs(out.astype(np.float64) - exact).max() < 2e-2
    assert foveal.check(q, k, v, dout=out)


def test_cupy():
    cupy = pytest.importorskip("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        pytest.skip("no CUDA device")
    host = inputs("numpy")
    q, k, v = (cupy.asarray(t) for t in host)
    with cupy.cuda.Stream():
        out, lse = foveal.forward(q, k, v, mask=foveal.causal())
        dq, _, _, _ = foveal.backward(q, k, v, out, lse, out, mask=foveal.causal())
        assert isinstance(out, cupy.ndarray)
        expected, expected_lse = foveal.forward(*host, mask=foveal.causal())
        assert np.allclose(out.get(), expected, atol=1e-4)
        assert np.allclose(dq.get(), foveal.backward(*host, expected, expected_lse, expected, mask=foveal.causal())[0], atol=1e-3)


def test_everything_public_is_documented():
    for name in dir(foveal):
        value = getattr(foveal, name)
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", "").startswith("foveal."):
            assert value.__doc__, name
