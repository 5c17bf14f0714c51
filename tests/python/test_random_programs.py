"""Random score_mods and mask_mods of torch through the FlexAttention door, against fp64 autograd of the same functions on whole matrices.

FOVEAL_PROGRAMS=COUNT and FOVEAL_SEED=FIRST run more and others than every test run does; a failure names its seed and prints the program."""

import os
import random

import pytest

torch = pytest.importorskip("torch")
import foveal.torch  # noqa: E402
from places import seeded  # noqa: E402

COUNT, FIRST = int(os.environ.get("FOVEAL_PROGRAMS", "60")), int(os.environ.get("FOVEAL_SEED", "1"))
N = 12  # positions; heads: 2, batch: 2


class Program:
    """Source of a score_mod and a mask_mod over the tensors `row`, `table`, `scale` (trained) and `ids` (integers)."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        depth = self.random.randint(1, 3)
        self.score, self.mask = f"s * 0.5 + {self.real(depth)}", self.boolean(depth - 1)

    def pick(self, *items):
        return self.random.choice(items)

    def real(self, depth):
        if depth == 0:
            return self.pick("s", "s", "s", f"row[{self.integer(0)}]", "table[h, i]", f"table[h, {self.integer(0)}]", "scale",
                             f"{self.random.uniform(-2, 2):.3f}")  # fmt: skip
        a, b = (self.real(depth - 1) for _ in range(2))
        x = f"({a} + 0 * s)"  # a tensor, also where a is a number
        return self.pick(f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} / (1.5 + {x} ** 2))", f"torch.tanh({x})", f"torch.sigmoid({x})",
                         f"torch.sin({x})", f"torch.cos({x})", f"torch.exp(-torch.abs({x}))", f"torch.log1p({x} * {x})", f"torch.erf({x})",
                         f"torch.maximum({x}, {b} + 0 * s)", f"torch.minimum({x}, {b} + 0 * s)", f"torch.clamp({x}, -0.7, 0.9)",
                         f"torch.nn.functional.softplus({x})", f"torch.nn.functional.relu({x})", f"torch.sqrt(1 + {x} * {x})", f"(-{a})",
                         f"torch.where({self.boolean(depth - 1)}, {x}, {b} + 0 * s)", f"({a} + 0.125 * {self.integer(depth - 1)}.double())",
                         f"({x}.abs() + 0.2).log()", f"torch.addcmul({x}, {x}, {b} + 0 * s, value=0.5)")  # fmt: skip

    def integer(self, depth):
        if depth == 0:
            return self.pick("i", "j", "i", "j", "h", "b")
        a, b = (self.integer(depth - 1) for _ in range(2))
        return self.pick(f"({a} + {b})", f"({a} - {b})", f"({a} * 2)", f"({a} // 3)", f"({a} % 4)", f"torch.minimum({a}, {b})", f"ids[{self.integer(0)}]",
                         f"torch.abs({a} - {b})", f"torch.clamp({a}, 1, 6)", f"({a} ^ {b})", f"({a} & 5)", f"({a} | {b})")  # fmt: skip

    def boolean(self, depth):
        if depth <= 0:
            return self.pick("(j <= i)", "(i - j < 5)", "(ids[i] == ids[j])", "(h == 0)", "(j % 3 != 1)")
        a, b = (self.boolean(depth - 1) for _ in range(2))
        return self.pick(f"({a} & {b})", f"({a} | {b})", f"(~{a})", f"({self.integer(1)} < {self.integer(1)})", f"({a} ^ {b})",
                         f"({self.integer(1)} >= {self.integer(0)})")  # fmt: skip

    def functions(self, tensors):
        source = f"def score_mod(s, b, h, i, j):\n    return {self.score}\n\n\ndef mask_mod(b, h, i, j):\n    return {self.mask}\n"
        space = {"torch": torch, **tensors}
        exec(source, space)  # noqa: S102
        return space["score_mod"], space["mask_mod"]


def data(seed, dtype):
    made = seeded(seed)
    draw = lambda *shape: torch.randn(*shape, generator=made, dtype=torch.float64).to(dtype).requires_grad_()  # noqa: E731
    qkv = [draw(2, 2, N, 8) for _ in range(3)]
    trained = {"row": draw(N), "table": draw(2, N), "scale": draw(())}
    ids = torch.randint(0, 4, (N,), generator=made)
    return qkv, trained, ids, torch.randn(2, 2, N, 8, generator=made, dtype=torch.float64).to(dtype)


def results(attend, program, seed, dtype, factor=1.0):
    qkv, trained, ids, dout = data(seed, dtype)
    score_mod, mask_mod = program.functions({**trained, "ids": ids})
    out = attend(qkv[0] * factor, qkv[1], qkv[2], score_mod, mask_mod)
    gradients = torch.autograd.grad((out * dout).sum(), [*qkv, *trained.values()], allow_unused=True)
    return [out.detach(), *[torch.zeros(1) if x is None else x for x in gradients]]


def dense(q, k, v, score_mod, mask_mod):
    b, h, i, j = (torch.arange(n).view([-1 if d == at else 1 for d in range(4)]) for at, n in enumerate((2, 2, N, N)))
    scores = score_mod(q @ k.transpose(-1, -2) * 8**-0.5, b, h, i, j)
    kept = mask_mod(b, h, i, j).expand(scores.shape)
    weights = torch.softmax(scores.masked_fill(~kept, -torch.inf), -1).masked_fill(~kept, 0.0)
    return torch.where(kept.any(-1, keepdim=True), weights, 0.0) @ v


def ours(q, k, v, score_mod, mask_mod):
    return foveal.torch.flex_attention(q, k, v, score_mod, mask_mod)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_program_equals_autograd(seed):
    program = Program(seed)
    said = f"seed {seed}\nscore: {program.score}\nmask: {program.mask}"
    exact, near = (results(dense, program, seed, torch.float64, factor) for factor in (1.0, 1 + 1e-12))
    found = results(ours, program, seed, torch.float64)
    for name, x, nearby, y in zip(("out", "dq", "dk", "dv", "drow", "dtable", "dscale"), exact, near, found):
        size = 1 + x.abs().max().item()
        off = 1e3 * (x - nearby).abs().max().item()
        if not x.isfinite().all() or off > 1e-4 * size:
            continue  # rows without keys have no gradient in autograd; a jump, or too steep, to tell
        assert (x - y).abs().max().item() <= 1e-9 * size + off, f"{name} of {said}"
