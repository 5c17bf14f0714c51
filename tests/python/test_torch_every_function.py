"""Every function of torch, torch.nn.functional, torch.special and torch.linalg, and every method of tensors, in a score: what torch computes, or a
clear refusal; never something else. What tracing accepts is tried further, gradients too, in test_torch_generated.py.

One key for each query: the log of the softmax's denominator is the score, a weighted sum of all elements of what the function gives.
"""

import math

import pytest
import torch
import torch.nn.functional as F

import foveal.describe
import foveal.torch
from places import seeded

N = 3  # examples
GENERATOR = seeded(0)
LEFT_OUT = set(  # what sets something for all, opens files, moves tensors or asks about memory
    "save load manual_seed seed compile vmap from_file from_numpy frombuffer fork wait prepare_multiprocessing_environment clear_autocast_cache "
    "init_num_threads use_deterministic_algorithms import_ir_module import_ir_module_from_buffer parse_ir parse_schema resize_ resize_as_ "
    "share_memory_ register_hook apply_ map_ map2_ register_post_accumulate_grad_hook requires_grad_ retain_grad backward pin_memory tolist numpy item "
    "storage untyped_storage data_ptr autocast_increment_nesting autocast_decrement_nesting pad_sequence cuda xpu ipu to_mkldnn "
    "index searchsorted".split()  # torch itself takes long for the former; the latter looks among what is not sorted
)
BEGINNINGS = ("_", "set_", "get_", "cudnn", "mkldnn", "miopen", "quantized", "fbgemm", "is_autocast")


def functions_of(module, where):
    for name in dir(module):
        fn = getattr(module, name)
        if callable(fn) and not isinstance(fn, type) and not name.startswith(BEGINNINGS) and name not in LEFT_OUT:
            yield f"{where}.{name}", fn


PLACES = {"torch": torch, "F": F, "special": torch.special, "linalg": torch.linalg, "Tensor": torch.Tensor}
FUNCTIONS = [each for where, module in PLACES.items() for each in functions_of(module, where)]


def real(*shape, low=-2.0, high=2.0):
    return torch.rand(N, *shape, generator=GENERATOR, dtype=torch.float64) * (high - low) + low


X, Y, P, Q = real(), real(), real(low=0.1, high=0.9), real(low=1.1, high=3.0)
I, J, U = torch.tensor([-3, 2, 4]), torch.tensor([5, -1, 2]), torch.tensor([1, 2, 3])
V, W, M, L = real(4), real(4).sort(-1).values, real(3, 3), real(3, 3)
# Of each group, the first that torch itself takes: tensors, an example in front, and constants after them.
GROUPS = {
    "reals": [((X,), ()), ((P,), ()), ((Q,), ()), ((X, Y), ()), ((P, Q), ()), ((Q, P), ()), ((X,), (0,)), ((X,), (2,)), ((X,), (1, 1)), ((X, Y, P), ()),
              ((X > 0, X, Y), ()), ((X,), (torch.float32,)), ((X,), ((1,),))],
    "integers": [((I,), ()), ((I, J), ()), ((I, U), ()), ((I > 0, J > 0), ()), ((I,), (2,)), ((I,), ((1,),)), ((I > 0, I, J), ())],
    "rows": [((V,), ()), ((V, W), ()), ((V,), (0,)), ((V,), (2,)), ((V,), (0, 0)), ((V,), (1, 0)), ((V,), ((2, 2),)), ((V,), ((0,),)), ((V, X), ()),
             ((V > 0, V, W), ()), ((V, W, V), ()), ((V,), (0, 2)), ((V, W), (0,)), ((V,), (2, 0))],
    "matrices": [((M,), ()), ((M, L), ()), ((M, W[:, :3]), ()), ((M,), (0,)), ((M,), (1,)), ((M,), (0, 1)), ((M,), (1, 0)), ((M,), ((9,),)), ((M, M, L), ()),
                 ((M,), (0, 1, 1))],
}  # fmt: skip


def leaves(found):
    return [x for part in found for x in leaves(part)] if isinstance(found, (list, tuple)) else [found]


def looks(found):
    return [(x.dtype, tuple(x.shape)) if hasattr(x, "shape") else x for x in leaves(found)]


def weighted(found):
    total, at = 0.0, 0
    for x in leaves(found):
        size = math.prod(x.shape)
        if size > 0:
            total = total + (x.double().reshape(size) * torch.cos(torch.arange(at + 1.0, at + size + 1.0, dtype=torch.float64))).sum()
        at += size
    return total


def theirs(call, tensors):
    """(weighted results, looks), where a score can hold what torch gives, and it is the same again; else None."""
    found, values = None, []
    for seed in (0, 1):
        torch.manual_seed(seed)
        found = [call(*[x[at].clone() for x in tensors]) for at in range(N)]
        parts = leaves(found[0])
        if not parts or not all(isinstance(x, torch.Tensor) and not (x.is_complex() or x.layout != torch.strided or x.is_quantized) for x in parts):
            return None
        if not any(x.numel() for x in parts):
            return None
        values.append(torch.stack([torch.as_tensor(weighted(x)) for x in found]))
    return (values[0], looks(found[0])) if torch.equal(*[x.nan_to_num(7.0) for x in values]) else None


def difference(call, tensors, expected, look):
    """Of what foveal gives; None: none, or a clear refusal."""
    q, seen = torch.zeros(1, N, 1, 1, dtype=torch.float64), []

    def score_mod(s, b, h, i, j):
        found = call(*[x[i] for x in tensors])
        seen.append(looks(found))
        return weighted(found) + 0 * s

    foveal.describe._traces.clear()
    try:
        found = foveal.torch.attention(q, q[:, :1], q[:, :1], score_mod, return_lse=True)[1][0, 0]
    except (TypeError, ValueError, NotImplementedError, IndexError, RuntimeError) as error:
        words = str(error).removeprefix("foveal.torch.attention: ")
        return None if words != str(error) and len(words) > 20 else f"refused without a clear word: {error!r}"
    if seen[-1] != look:
        return f"{seen[-1]} and not {look}"
    usual = expected.isfinite()
    if not torch.allclose(found[usual], expected[usual], rtol=1e-6, atol=1e-6) or found[~usual].isfinite().any():
        return f"{found} and not {expected} of {tensors}"
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, fn", FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_right_or_refused(name, fn):
    wrong = {}
    for group, candidates in GROUPS.items():
        for tensors, constants in candidates:
            call = lambda *x, constants=constants: fn(*x, *constants)  # noqa: E731
            try:
                expected = theirs(call, tensors)
            except Exception:  # noqa: S112 - torch's own word, whatever it is, that it takes something else
                continue
            if expected is not None:
                wrong[group] = difference(call, tensors, *expected)
                break
    wrong = {group: words for group, words in wrong.items() if words is not None}
    assert not wrong, "; ".join(f"{group}: {words}" for group, words in wrong.items())
