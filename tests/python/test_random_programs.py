"""Random score_mods and mask_mods of torch through the FlexAttention door, against fp64 autograd of the same functions on whole matrices: deep
expressions, and functions as users write them (program_writer).

FOVEAL_PROGRAMS=COUNT and FOVEAL_SEED=FIRST run more and others than every test run does; a failure names its seed and prints the program."""

import os
import random

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812

import foveal.torch  # noqa: E402
import program_writer  # noqa: E402
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
    check(("out", "dq", "dk", "dv", "drow", "dtable", "dscale"), exact, near, found, said)


def check(names, exact, near, found, said, tolerance=1e-9):
    for name, x, nearby, y in zip(names, exact, near, found):
        x, nearby, y = x.double(), nearby.double(), y.double()
        size = 1 + x.abs().max().item()
        off = 1e3 * (x - nearby).abs().max().item()
        if not x.isfinite().all() or not off <= 1e-4 * size:
            continue  # rows without keys have no gradient in autograd; a jump, or too steep, to tell
        assert (x - y).abs().max().item() <= tolerance * size + off, f"{name} of {said}"


# ---- as users write them ----

SHAPES = {"row": (N,), "table": (2, N), "bias": (2, N, N), "scale": (), "slopes": (2,), "points": (N, 3), "mat": (2, 3, 3)}


def captured(seed, mixed):
    """What programs read. mixed: some are of float32, and so is what is computed of these alone."""
    made, pick = seeded(seed), random.Random(seed)
    dtypes = (torch.float32, torch.float64) if mixed else (torch.float64,)
    trained = {name: torch.randn(shape, generator=made, dtype=torch.float64).to(pick.choice(dtypes)).requires_grad_() for name, shape in SHAPES.items()}
    draw = lambda low, high, *shape, dtype=torch.int64: torch.randint(low, high, shape, generator=made).to(dtype)  # noqa: E731
    read = {"ids": draw(0, 4, N), "near": draw(-3, N, N, dtype=torch.int32), "few": draw(0, N, N, dtype=torch.uint8), "bucket": draw(0, N, 2, N)}
    return trained, {**read, "flag": draw(0, 2, N).bool(), "edges": torch.tensor([-1.0, 0.0, 0.5, 2.0], dtype=torch.float64), "n": N}


def of_a_user(attend, source, seed, mixed, factor=1.0):
    q, k, v = (x.detach() * (factor if at == 0 else 1.0) for at, x in enumerate(data(seed, torch.float64)[0]))
    qkv, dout = [x.requires_grad_() for x in (q, k, v)], data(seed, torch.float64)[3]
    trained, read = captured(seed, mixed)
    space = {"torch": torch, "F": F, **{name: (x * factor).to(x.dtype) for name, x in trained.items()}, **read}
    exec(source, space)  # noqa: S102
    out = attend(*qkv, space["score_mod"], space["mask_mod"])
    found = torch.autograd.grad((out * dout).sum(), [*qkv, *trained.values()], allow_unused=True)
    return [out.detach(), *[torch.zeros(1) if x is None else x for x in found]]


def by_vmap(q, k, v, score_mod, mask_mod):
    """As FlexAttention without torch.compile: the functions see single positions."""

    def over_all(fn, *scores):
        for at in (3, 2, 1, 0):
            fn = torch.vmap(fn, in_dims=(*[0 for _ in scores], *[0 if d == at else None for d in range(4)]))
        return fn(*scores, *[torch.arange(n) for n in (2, 2, N, N)])

    scores, kept = over_all(score_mod, q @ k.transpose(-1, -2) * 8**-0.5), over_all(mask_mod)
    weights = torch.softmax(scores.double().masked_fill(~kept, -torch.inf), -1)
    return torch.where(kept.any(-1, keepdim=True), weights, 0.0) @ v


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("mixed", [False, True], ids=["doubles", "mixed"])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + (COUNT + 1) // 2))
def test_program_of_a_user_equals_autograd(seed, mixed):
    """In a program of doubles, numbers of Python and `.double()` of integers are doubles, too; `.float()` rounds, and its derivatives with it in torch."""
    source = program_writer.Program(2 * seed + mixed, program_writer.TORCH).source
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if mixed else torch.float64)
    try:
        try:
            exact, near = (of_a_user(by_vmap, source, seed, mixed, factor) for factor in (1.0, 1 + (1e-7 if mixed else 1e-12)))
        except RuntimeError as error:
            pytest.skip(f"torch refuses the program: {error}")
        if not exact[0].isfinite().all():
            pytest.skip("a row of NaN, of which torch and foveal have other derivatives")
        found = of_a_user(ours, source, seed, mixed)
    finally:
        torch.set_default_dtype(before)
    tolerance = 2e-5 if mixed else 1e-6 if ".float()" in source else 1e-9
    check(("out", "dq", "dk", "dv", *SHAPES), exact, near, found, f"seed {seed}\n{source}", tolerance)
