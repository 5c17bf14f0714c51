"""Every cache has a bound: thousands of different programs take no more memory than hundreds, and what was forgotten is made again."""

import ctypes
import gc
import os
import subprocess
import sys

import foveal
import foveal.describe as describe
import numpy as np
import pytest


class MallocInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks in_use free keepcost".split()]


def in_use():
    """Bytes of the C heap in use. Not of the process: what lies between blocks grows for a while, and is no leak."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = MallocInfo
    info = libc.mallinfo2()
    return info.in_use + info.hblkhd


def small(dtype=np.float32):
    random = np.random.default_rng(5)
    return [random.standard_normal((1, 4, 1, 8)).astype(dtype) for _ in range(3)]


def flat(run, many):
    """run(i) for many different i: from the time when all caches are full on, memory stays."""
    begin = 2500
    for i in range(begin):
        run(i)
    full = in_use()
    for i in range(begin, many):
        run(i)
    assert in_use() - full < 0.01 * full


def test_ten_thousand_programs():
    q, k, v = small()
    flat(lambda i: foveal.attention(q, k, v, f"score + {i} * 1e-5 * kv_idx"), 10_000)
    assert len(describe._programs) <= describe._MAX_PROGRAMS and len(describe._traces) <= describe._MAX_TRACES


def test_ten_thousand_shapes_of_one_program():
    def run(i):
        x = np.zeros((1, 1 + i % 40, 1, 1 + i // 40), np.float32)
        foveal.attention(x, x, x, "score + 0.25")

    flat(run, 4000)


def test_a_forgotten_program_is_made_again():
    q, k, v = small()
    table = np.arange(8, dtype=np.float32)
    arguments = dict(scale=0.3, sink=np.ones(1, np.float32), deterministic=True, strategy="split", checked=True, q_offset=3, kv_offset=2)
    description = describe.describe("score + table[kv_idx]", "kv_idx <= q_idx + 2", params={"table": table}, **arguments)
    bound = describe.bind(description, foveal.Options(threads=1))
    before = bound.program.forward(q, k, v, bound.arrays, True)
    describe._programs.clear()
    again = describe.program(bound.program.key)
    assert again is not bound.program and describe.program(bound.program.key) is again
    for a, b in zip(before, again.forward(q, k, v, bound.arrays, True)):
        assert a.tobytes() == b.tobytes()
    assert describe.read(description.text).text == description.text


def test_code_of_torch_compile_outlives_its_program():
    torch = pytest.importorskip("torch")
    import foveal.torch

    q, k, v = (torch.from_numpy(x).requires_grad_() for x in small())
    module = foveal.torch.Attention("score * 0.625 - 0.125", "kv_idx <= q_idx")

    def step(q, k, v):
        return module(q, k, v).square().sum()

    compiled = torch.compile(step, backend="aot_eager")
    wanted = torch.autograd.grad(compiled(q, k, v), (q, k, v))
    describe._programs.clear()
    for a, b in zip(wanted, torch.autograd.grad(compiled(q, k, v), (q, k, v))):
        assert torch.equal(a, b)


def test_compiled_code_of_jax_outlives_its_calls():
    jax = pytest.importorskip("jax")
    import foveal._core as core
    import foveal.jax
    from foveal.jax import foreign

    q, k, v = small()

    def loss(q, k, v, seed):
        return (foveal.jax.attention(q, k, v, "score * 0.625", "kv_idx <= q_idx", dropout_p=0.25, seed=seed) ** 2).sum()

    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    folded = jax.jit(jax.vmap(lambda q, b: foveal.jax.attention(q, k, v, "score + b[kv_idx]", params={"b": b})))
    batched = np.stack([q, 2 * q]), np.arange(8, dtype=np.float32).reshape(2, 4)
    wanted, wanted_folded = compiled(q, k, v, 3), folded(*batched)
    for i in range(1200):  # more than are kept
        jax.eval_shape(lambda q: foveal.jax.attention(q, k, v, f"score * {i} + 0.125"), q)
    assert len(foreign.planned) == foreign.MAX_PLANNED and core.xla_registered() == 1024
    for a, b in zip(jax.tree.leaves((wanted, wanted_folded)), jax.tree.leaves((compiled(q, k, v, 3), folded(*batched)))):
        assert np.array_equal(a, b)


def test_jax_compilation_cache_serves_another_process(tmp_path):
    jax = pytest.importorskip("jax")
    code = (
        "import jax, numpy as np, foveal.jax, foveal._core as core\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)\n"
        "q = np.random.default_rng(1).standard_normal((1, 4, 1, 8)).astype(np.float32)\n"
        "print(np.asarray(jax.jit(lambda q: foveal.jax.attention(q, q, q, 'score * 2'))(q)).tobytes().hex())\n"
    )
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    said = [subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert said[0] == said[1] and said[0]
    assert any(tmp_path.iterdir())


def naive(q, k, v, bias, cap=2.0):
    s = cap * np.tanh((np.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5 + bias) / cap)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)


def test_what_lengths_share_knows_of_strides_and_frameworks():
    """Programs and what makes results are shared by the plans of other lengths; a parameter's strides and the kind of arrays are no length."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(7)
    q, k, v = [random.standard_normal((1, 12, 2, 8)).astype(np.float32) for _ in range(3)]
    table = random.standard_normal((12, 12)).astype(np.float32)
    score = "2.0 * tanh((score + bias[q_idx, kv_idx]) / 2.0)"
    for keys in range(5, 12):
        for bias in (table, table.T):
            for array in (np.asarray, torch.from_numpy):
                given = [array(x) for x in (q, k[:, :keys], v[:, :keys])]
                out, lse = foveal.forward(*given, score, params={"bias": array(bias)})
                assert type(out) is type(lse) is type(given[0])
                np.testing.assert_allclose(np.asarray(out), naive(q, k[:, :keys], v[:, :keys], bias[:, :keys]), atol=2e-6)
