"""foveal.torch on a GPU: the kernel that ran, streams, graphs, and agreement with torch. Left out without one."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import foveal  # noqa: E402
import foveal.torch  # noqa: E402


def tensors(*shape, dtype=torch.bfloat16, grad=True, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(shape, generator=generator, device="cuda").to(dtype).requires_grad_(grad) for _ in range(3)]


def sdpa(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True).transpose(1, 2)


def test_a_gpu_kernel_runs():
    q, k, v = tensors(2, 256, 4, 64)
    for backward in (False, True):
        report = foveal.explain(q, k, v, mask=foveal.causal(), backward=backward)
        assert report["backend"] == "cuda" and report["kernel"].startswith("cuda.")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_agrees_with_torch(dtype):
    q, k, v = tensors(2, 333, 4, 64, dtype=dtype)
    dout = torch.randn_like(q)
    expected = torch.autograd.grad(sdpa(*(t.double() for t in (q, k, v))), (q, k, v), dout.double())
    found = torch.autograd.grad(foveal.torch.attention(q, k, v, mask=foveal.causal()), (q, k, v), dout)
    bound = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}[dtype]
    for a, b in zip(found, expected):
        assert (a.double() - b.double()).norm() <= bound * b.double().norm()


def test_graph_capture_and_side_stream():
    q, k, v = tensors(1, 512, 4, 64, grad=False)
    layer = foveal.torch.Attention(mask=foveal.causal())
    expected = layer(q, k, v)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert torch.equal(layer(q, k, v), expected)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(q, k, v)
    q.mul_(0.5)
    graph.replay()
    assert torch.equal(captured, layer(q, k, v)) and not torch.equal(captured, expected)


def test_graph_of_a_training_step():
    """Forward, backward and the update of a trained table in one CUDA graph, replayed on new inputs."""
    q, k, v = tensors(1, 256, 4, 64)
    table = torch.nn.Parameter(torch.zeros(4, 512, device="cuda"))
    layer = foveal.torch.Attention(lambda s, b, h, i, j: s + table[h, i - j + 256], foveal.causal())

    def step():
        gradients = torch.autograd.grad(layer(q, k, v).float().pow(2).mean(), (q, table))
        with torch.no_grad():
            table.sub_(gradients[1], alpha=100.0)
        return gradients[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # plans and compiles outside of the capture
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dq = step()
    with torch.no_grad():
        q.copy_(torch.randn_like(q))
        table.zero_()
    graph.replay()
    replayed, trained = dq.clone(), table.detach().clone()
    with torch.no_grad():
        table.zero_()
    expected = step()
    torch.testing.assert_close(replayed, expected)
    torch.testing.assert_close(trained, table.detach())
    assert trained.abs().max() > 0


def test_trained_table_is_bitwise_repeatable():
    q, k, v = tensors(2, 512, 4, 64)
    table = torch.randn(4, 1024, device="cuda", requires_grad=True)
    layer = foveal.torch.Attention(lambda s, b, h, i, j: s + table[h, i - j + 512], foveal.causal(), deterministic=True)
    runs = [torch.autograd.grad(layer(q, k, v).float().pow(2).sum(), (q, k, v, table)) for _ in range(20)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0]))


def test_compiles_by_inductor():
    q, k, v = tensors(1, 256, 2, 64)
    layer = foveal.torch.Attention(mask=foveal.causal())
    compiled = torch.compile(lambda q, k, v: layer(q * 2, k, v).sin(), fullgraph=True)
    expected = torch.autograd.grad(layer(q * 2, k, v).sin().sum(), (q, k, v))
    for a, b in zip(torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v)), expected):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_kernels_of_the_backward_pass_are_compiled_beside_those_of_the_forward_pass(tmp_path, monkeypatch):
    """The first backward pass finds its kernels: its plan takes a small part of the time that the forward pass's took."""
    monkeypatch.setenv("FOVEAL_CACHE_DIR", str(tmp_path))  # which has no kernels
    seconds = []
    q, k, v = tensors(1, 256, 2, 64)
    foveal._core.on_plan(lambda call, took: seconds.append(took))
    try:
        out = foveal.torch.attention(q, k, v, lambda s, b, h, i, j: s / (7.25 + abs(s)))
        foveal._core.finish_ahead()
        out.sum().backward()
    finally:
        foveal._core.on_plan(foveal.logging._planned)
    assert len(seconds) == 2 and seconds[1] < 0.2 * seconds[0]


@pytest.mark.parametrize("seqlen", [1, 40])
def test_keys_on_pages(seqlen):
    """Decode and prefill of a cache with NaN in the rows that no sequence uses; gradients land in the pages."""
    torch.manual_seed(0)
    page, lengths = 64, [300, 64, 1, 517]
    pages = [-(-n // page) for n in lengths]
    order = torch.randperm(sum(pages)).tolist()
    table = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
    k, v = (torch.full((sum(pages), page, 2, 64), torch.nan, dtype=torch.bfloat16) for _ in range(2))
    for b, (n, count) in enumerate(zip(lengths, pages)):
        for i in range(count):
            table[b, i] = order.pop()
            rows = min(page, n - i * page)
            for pool in (k, v):
                pool[table[b, i], :rows] = torch.randn(rows, 2, 64, dtype=torch.bfloat16)
    q = torch.randn(len(lengths), seqlen, 8, 64, dtype=torch.bfloat16)
    arguments = dict(mask=foveal.causal_bottom_right(), score_mod=lambda s, b, h, i, j: s + 0.1 * h)

    def run(device, dtype):
        tensors = [t.to(device, dtype, copy=True).requires_grad_() for t in (q, k, v)]
        out = foveal.torch.attention(*tensors, block_table=table.to(device), seqlens_kv=torch.tensor(lengths, dtype=torch.int32, device=device), **arguments)
        return [out, *torch.autograd.grad(out.double().square().sum(), tensors)]

    found, expected = run("cuda", torch.bfloat16), run("cpu", torch.float64)
    for a, b in zip(found, expected):
        a, b = a.detach().double().cpu(), b.detach()
        kept = b.isfinite()
        assert (a[kept] - b[kept]).norm() <= 2e-2 * b[kept].norm()
    report = foveal.explain(q.cuda(), k.cuda(), v.cuda(), block_table=table.cuda(), seqlens_kv=torch.tensor(lengths, dtype=torch.int32).cuda(), mask=arguments["mask"])
    assert report["kernel"].startswith(("cuda.sm90.bf16.decode", "cuda.sm90.bf16.forward")) and "gathered" not in report["kernel"]
