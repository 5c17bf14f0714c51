"""What records or intercepts calls below torch's functions sees foveal's operators: nothing becomes a constant of a recording."""

import functools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import foveal
import foveal.torch
from places import seeded

BIAS = torch.randn(6, 6, generator=seeded(5), dtype=torch.float64)
DOORS = {
    "sdpa": lambda q, k, v: foveal.torch.scaled_dot_product_attention(q, k, v, is_causal=True),
    "sdpa, mask": lambda q, k, v: foveal.torch.scaled_dot_product_attention(q, k, v, BIAS),
    "flex": lambda q, k, v: foveal.torch.flex_attention(q, k, v, lambda s, b, h, i, j: s + BIAS[i, j]),
    "attention": lambda q, k, v: foveal.torch.attention(q, k, v, mask=foveal.causal()),
}


def tensors(factor=1.0):
    return [factor * torch.randn(1, 6, 6, 4, generator=seeded(i), dtype=torch.float64) for i in range(3)]


def loss(door):
    return lambda q, k, v: door(q, k, v).pow(2).sum()


@pytest.mark.filterwarnings("ignore::foveal.MaterializedWarning")
@pytest.mark.parametrize("transform", [lambda f: f, lambda f: torch.func.grad(loss(f)), torch.vmap], ids=["plain", "grad", "vmap"])
@pytest.mark.parametrize("name", DOORS)
def test_make_fx(name, transform):
    fn = transform(DOORS[name])
    lead = (lambda x: torch.stack([x, 2 * x])) if transform is torch.vmap else (lambda x: x)
    recorded, others = make_fx(fn)(*map(lead, tensors())), [lead(x) for x in tensors(2.0)]
    torch.testing.assert_close(recorded(*others), fn(*others))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", DOORS)
def test_jit_trace(name):
    recorded, others = torch.jit.trace(DOORS[name], tensors()), tensors(2.0)
    torch.testing.assert_close(recorded(*others), DOORS[name](*others))


@pytest.mark.parametrize("name", DOORS)
def test_fake_tensors(name):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = DOORS[name](*[mode.from_tensor(x) for x in tensors()])
    assert found.shape == (1, 6, 6, 4) and found.dtype == torch.float64


@pytest.mark.parametrize("name", DOORS)
def test_tensors_with_a_dispatch_of_their_own(name):
    first, second = tensors(), tensors(2.0)
    found = DOORS[name](*[TwoTensor(a, b) for a, b in zip(first, second)])
    torch.testing.assert_close(found.a, DOORS[name](*first))
    torch.testing.assert_close(found.b, DOORS[name](*second))


@pytest.mark.parametrize("name", DOORS)
def test_selective_checkpointing_and_counters_see_the_operator(name):
    seen = []

    def policy(context, op, *args, **kwargs):
        seen.append(str(op))
        return CheckpointPolicy.MUST_SAVE if "foveal" in str(op) else CheckpointPolicy.PREFER_RECOMPUTE

    inputs = [x.requires_grad_() for x in tensors()]
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    found = torch.autograd.grad(checkpoint(loss(DOORS[name]), *inputs, use_reentrant=False, context_fn=contexts), inputs)
    for a, b in zip(found, torch.autograd.grad(loss(DOORS[name])(*inputs), inputs)):
        torch.testing.assert_close(a, b)
    assert any("foveal" in op for op in seen)
    with FlopCounterMode(display=False):
        torch.testing.assert_close(DOORS[name](*inputs), DOORS[name](*inputs))


def test_sizes_that_torch_compile_keeps_open():
    """A mask's sizes are a program's: each length is compiled for itself, without a graph break."""
    torch._dynamo.reset()
    compiled = torch.compile(foveal.torch.scaled_dot_product_attention, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (6, 7, 8):
        q, k, v = (torch.randn(1, 2, n, 4, dtype=torch.float64) for _ in range(3))
        mask = torch.randn(n, n, dtype=torch.float64)
        torch.testing.assert_close(compiled(q, k, v, mask), torch.nn.functional.scaled_dot_product_attention(q, k, v, mask))


def test_what_an_operator_is_told_fits_in_a_comment():
    """Inductor writes the arguments of a call into comments of the code that it makes: text after a line's end would be code."""
    layer = foveal.torch.Attention(lambda s, b, h, i, j: s - (i - j), mask=foveal.causal())
    texts = []

    def look(graph, _):
        texts.extend(arg for node in graph.graph.nodes for arg in node.args if isinstance(arg, str) and "kv_idx" in arg)
        return graph

    q = torch.randn(1, 8, 2, 4)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend=look)(q, q, q), layer(q, q, q))
    assert texts and not any(len(text.splitlines()) > 1 for text in texts)


class OnGpu:
    """A CPU tensor that says it lies on a GPU."""

    is_cuda = True

    def __init__(self, tensor):
        self.tensor, self.stride, self.resolve_neg = tensor, tensor.stride, lambda: self

    def contiguous(self):
        return OnGpu(self.tensor.contiguous())


def test_gradients_that_hopper_cannot_load_are_copied():
    from foveal.torch.operators import as_rows

    one = torch.ones(1, device="cpu").expand(2, 3, 4, 8)
    assert as_rows(one) is one
    assert as_rows(OnGpu(one)).stride() == (96, 32, 8, 1)
    rows = OnGpu(torch.ones(2, 4, 3, 8).transpose(1, 2))
    assert as_rows(rows) is rows
