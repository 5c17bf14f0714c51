"""Several threads trace at once: what one of them puts in place for its function is neither left behind nor taken for another's."""

import threading

import torch

import foveal
import foveal.torch
from places import seeded

Q = torch.randn(1, 5, 2, 4, generator=seeded(0), dtype=torch.float64)


def overlapping(*inside):
    """Calls whose functions are entered one after the other and left in the order of their beginning; inside(score) is done while both are."""
    entered, left = [threading.Event() for _ in inside], [threading.Event() for _ in inside]
    results = [None] * len(inside)

    def run(n):
        def score_mod(s, b, h, i, j):
            entered[n].set()
            assert all([event.wait(60) for event in entered]) and (n == 0 or left[n - 1].wait(60))
            return inside[n](s)

        if n > 0:
            entered[n - 1].wait(60)
        try:
            results[n] = foveal.torch.attention(Q, Q, Q, score_mod)
        except Exception as error:
            results[n] = error
        left[n].set()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(inside))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return results


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


def test_functions_of_autograd_are_left_as_they_were():
    """That of the first thread stayed guarded by the second, one guard more each time."""
    apply, unwrap = torch.autograd.Function.__dict__["apply"], torch._functorch.utils.unwrap_dead_wrappers
    first, second = overlapping(lambda s: s * 2, lambda s: Twice.apply(s))
    assert torch.equal(first, foveal.torch.attention(Q, Q, Q, "score * 2.0"))
    assert isinstance(second, NotImplementedError) and "Twice: a torch.autograd.Function inside a score or mask" in str(second)
    assert torch.autograd.Function.__dict__["apply"] is apply and torch._functorch.utils.unwrap_dead_wrappers is unwrap


def test_results_of_foveals_functions_are_of_their_own_trace():
    """An expression's methods were those of the trace that began last."""
    found = overlapping(lambda s: foveal.exp(s).sin(), lambda s: foveal.exp(s).cos())
    for one, name in zip(found, ("sin", "cos")):
        assert torch.equal(one, foveal.torch.attention(Q, Q, Q, f"{name}(exp(score))"))
