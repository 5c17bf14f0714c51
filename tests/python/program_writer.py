"""Writes random score_mods and mask_mods as users write them: statements with local names, helpers, loops, closures over tensors of several dtypes and
ranks, small vectors, integers that index. The text is torch's or JAX's.

What a program may read, by name (`n` positions, H heads, B rows of the batch):
  reals      row[n]  table[H, n]  bias[B, n, n]  scale[]  slopes[H]  points[n, 3]  mat[H, 3, 3]  edges[4], which are sorted
  integers   ids[n]  near[n]  few[n], of 8 bits without sign  bucket[H, n]; all of them from -n to n - 1
  booleans   flag[n]

Templates stand for expressions. In them a letter in braces is another expression: {R}eal, {V}ector of 3, {I}nteger, {B}oolean; {S} and {W}, a real and a
vector that do not depend on the score, as what jumps where the score passes a border cannot be compared; {P}lace, an index; {N}umber of Python; {A}, the
number of an element of a vector.
"""

import random
import re

_LEAVES = {
    "R": ["row[i]", "row[j]", "table[h, j]", "table[h][i]", "bias[b, i, j]", "scale", "slopes[h]", "table[h, {P}]", "row[{P}]", "table[h, ...][j]"],
    "V": ["points[i]", "points[j]", "points[{P}]", "mat[h, 0]", "mat[h, :, 1]", "points[i, :]", "points[j, [2, 0, 1]]"],
    "I": ["i", "j", "h", "b", "(i - j)", "ids[i]", "ids[j]", "near[i]", "bucket[h, i]", "ids[{P}]"],
    "B": ["(j <= i)", "(i - j < 5)", "(ids[i] == ids[j])", "(h == 0)", "(j % 3 != 1)", "flag[i]", "(flag[i] & flag[j])", "(few[i] > 3)"],
    "P": ["i - j", "j - i", "({I}) % n", "ids[i]", "near[j]", "bucket[h, j]", "-1 - i", "(i + j) // 2"],
}

_COMMON = {
    "R": [
        "({R} + {R})", "({R} - {R})", "({R} * {R})", "({N} * {R})", "({R} + {N})", "({N} - {R})", "({R} / (1.5 + {R} ** 2))", "(-{R})", "({R} / {N})",
        "bent({R})", "bent({R}, strength={N})", "(0.1 * {I})", "({I} * {R} * 0.1)", "({I} / 4)", "({R} * {B})", "({V})[{A}]", "({V} @ {V})", "({N} / (2 + {R} ** 2))",
    ],
    "V": ["({V} + {V})", "({V} - {V})", "({V} * {R})", "({V} * {N})", "({V} * {V})", "(-{V})", "(mat[h] @ {V})"],
    "I": [
        "({I} + {I})", "({I} - {I})", "({I} * 2)", "({I} // 3)", "({I} % 4)", "({I} ^ {I})", "({I} & 5)", "({I} | {I})", "({I} * {I})", "(-{I})", "({I} >> 1)",
        "({I} // (1 + {I} % 3))", "({I} % -3)", "(7 - {I})", "({I} << 1)", "({I} // -2)", "(~{I})",
    ],
    "B": ["({B} & {B})", "({B} | {B})", "(~{B})", "({B} ^ {B})", "({I} < {I})", "({I} >= {I})", "({I} != {I})", "({S} > {N})", "({S} <= {S})", "({I} == 2)", "({I} > 1.5)"],
    "P": [],
}  # fmt: skip

TORCH = {
    "R": [
        "torch.tanh({R})", "torch.sigmoid({R})", "({R}).sin()", "torch.cos({R})", "torch.exp(-torch.abs({R}))", "torch.log1p({R} * {R})", "torch.erf({R})", "F.softplus({R})",
        "F.relu({R})", "torch.sqrt(1 + {R} ** 2)", "F.gelu({R})", "F.silu({R})", "torch.clamp({R}, -0.7, 0.9)", "F.leaky_relu({R}, 0.2)", "F.elu({R})", "torch.atan({R})",
        "({R}).abs()", "({R}).square()", "({R}).detach()", "torch.expm1(-({R}) ** 2)", "F.logsigmoid({R})", "torch.cosh(torch.tanh({R}))", "torch.asinh({R})",
        "({R}).double()", "({R}).float()", "({R}).to(torch.float64)", "({R}).clamp(min=-1.5)", "F.hardswish({R})", "torch.pow(1.1 + ({R}).abs(), 1.5)",
        "torch.rsqrt(1 + ({R}) ** 2)", "F.mish({R})", "torch.sinh(torch.sin({R}))", "torch.maximum({R}, {R})", "torch.minimum({R}, {R})", "torch.logaddexp({R}, {R})",
        "torch.hypot(1 + torch.abs({R}), {R})", "torch.atan2({R}, 2 + torch.abs({R}))", "torch.lerp(({R}).double(), ({R}).double(), 0.3)", "torch.max({R}, {R})",
        "torch.addcmul({R}, {R}, {R}, value=0.3)", "torch.add({R}, {R}, alpha=2)", "torch.sub({R}, {R}, alpha=0.5)", "({R}).minimum({R})", "torch.where({B}, {R}, {R})",
        "torch.where({B}, {R}, {N})", "torch.where({B}, 0.0, {R})", "({R}).masked_fill({B}, 0.25)", "({R}).where({B}, {R})", "({I}).float() * 0.25", "({I}).double() * 0.2",
        "(-({I}).abs().to(torch.float64)).exp2()", "({V}).sum()", "torch.dot({V}, {V})", "({V}).max()", "torch.amin({V}, 0)", "({V}).mean()", "torch.softmax({V}, 0)[{A}]",
        "torch.logsumexp({V}, 0)", "({V} - {V}).norm()", "({V}).prod()", "({V} * {V}).sum(-1)", "torch.linalg.vector_norm({V})", "torch.cumsum({V}, 0)[{A}]", "({V}).std()",
        "({V}).var(unbiased=False)", "torch.norm({V}, p=1)", "({V}).max(0).values", "F.normalize({V}, dim=0)[{A}]", "torch.einsum('d,d->', {V}, {V})",
        "F.cosine_similarity({V}, {V}, dim=0)", "({V})[{I} % 3]", "torch.gather({V}, 0, ({I} % 3).unsqueeze(0).long())[0]", "torch.stack([{R}, {R}]).sum()",
        "F.linear({V}, mat[h])[{A}]", "torch.floor(2 * {S})", "({S}).round()", "({S} % 1.5)", "torch.fmod({S}, 1.5)", "torch.floor({S} / 0.7)", "torch.frac({S})",
        "F.layer_norm({V}, (3,))[{A}]", "F.rms_norm({V}, (3,), mat[h, 1])[{A}]", "torch.cumprod({V}, 0)[{A}]", "({R}).unsqueeze(0).squeeze()", "torch.div({R}, {N})", "({V}).view(1, 3).sum(dim=1)[0]", "torch.full_like({R}, 0.5)", "torch.sign({S})", "({R}).clip({N}, 3.5)",
    ],
    "V": [
        "torch.tanh({V})", "torch.stack([{R}, {R}, {R}])", "torch.where({V} > 0.1, {V}, {V})", "torch.cumsum({V}, 0)", "({V}).flip(0)", "torch.maximum({V}, {V})",
        "({V}).roll(1)", "({V}).clamp(-1, 1)", "torch.cat([({V})[:1], ({V})[1:]])", "({V} / (1 + ({V}).norm()))", "(({V}).unsqueeze(0) * ({V}).unsqueeze(1)).sum(0)",
        "({V} * torch.arange(3))", "torch.softmax({V}, -1)", "({V} - ({V}).mean())", "torch.einsum('d,de->e', {V}, mat[h])", "({V}).double()",
    ],
    "I": [
        "torch.minimum({I}, {I})", "torch.abs({I})", "torch.clamp({I}, -2, 6)", "torch.where({B}, {I}, {I})", "torch.where({B}, {I}, 3)", "torch.floor(2 * {S}).long()",
        "({B}).long()", "torch.argmax({W})", "few[j].long()", "({S}).round().int()", "(few[j] + {I})", "torch.bucketize(({S}).double(), edges)", "({W} > 0).sum()",
        "torch.div({I}, 2, rounding_mode='trunc')", "({I}).sign()", "torch.stack([{I} + 0, {I} + 0]).sum()", "({I}).int()", "({I}).to(torch.int32)", "({I} // 2).clamp(min=0)",
        "torch.cumsum(torch.stack([{I} + 0, {I} + 0]), 0)[1]", "torch.remainder({I}, 5)", "torch.fmod({I}, 3)", "(few[i] - few[j])", "(few[i] * 40)", "({I}).square()", "torch.where({B}, few[i], few[j])",
    ],
    "B": [
        "({W} > 0.3).any()", "({W} < 0.5).all()", "torch.logical_and({B}, {B})", "torch.isfinite({S})", "({I}).bool()", "torch.isin({I}, torch.tensor([1, 3, 4]))",
        "torch.logical_not({I})", "torch.where({B}, {B}, {B})", "torch.isclose({S}, {S})", "({I}).eq({I})", "torch.ge({S}, {N})", "(few[i] == few[j])", "({I} < {S})",
    ],
    "P": ["torch.clamp({I}, 0, n - 1)", "torch.clamp({I}, -n, n - 1)", "({I}).abs() % n", "torch.where({B}, i, j)"],
}  # fmt: skip

JAX = {
    "R": [
        "jnp.tanh({R})", "jax.nn.sigmoid({R})", "jnp.sin({R})", "jnp.cos({R})", "jnp.exp(-jnp.abs({R}))", "jnp.log1p({R} ** 2)", "jax.nn.gelu({R})", "jax.nn.softplus({R})",
        "jax.nn.relu({R})", "jnp.sqrt(1 + {R} ** 2)", "jnp.arctan({R})", "jnp.clip({R}, -0.7, 0.9)", "jax.nn.silu({R})", "jax.nn.elu({R})", "jnp.square({R})", "jnp.abs({R})",
        "jax.lax.stop_gradient({R})", "jnp.expm1(-{R} ** 2)", "({R} + 0 * scale).astype(jnp.float32)", "jax.nn.log_sigmoid({R})", "jnp.cosh(jnp.tanh({R}))",
        "jnp.arcsinh({R})", "jnp.maximum({R}, {R})", "jnp.minimum({R}, {R})", "jnp.logaddexp({R}, {R})", "jnp.hypot(1 + jnp.abs({R}), {R})",
        "jnp.arctan2({R}, 2 + jnp.abs({R}))", "jnp.maximum({R}, {N})", "jnp.where({B}, {R}, {R})", "jnp.where({B}, {R}, {N})", "jnp.where({B}, 0.0, {R})",
        "jnp.sum({V})", "jnp.dot({V}, {V})", "jnp.max({V})", "jnp.min({V})", "jnp.mean({V})", "jax.nn.softmax({V})[{A}]", "jax.nn.logsumexp({V})",
        "jnp.sqrt(1 + jnp.sum(({V} - {V}) ** 2))", "jnp.prod({V})", "jnp.linalg.norm(1.5 + jnp.abs({V}))", "jnp.floor(2 * {S})", "jnp.round({S})", "({S} % 1.5)",
        "({S} // 0.7)", "jnp.take({V}, {I} % 3)", "({V})[{I} % 3]", "jnp.std(1.0 + {V} * jnp.arange(3))", "jnp.sign({S})", "jax.nn.leaky_relu({R}, 0.2)",
        "jnp.einsum('d,d->', {V}, {V})", "jnp.stack([{R}, {R}]).sum()", "({V}).sum()", "({V} * {V}).sum(-1)", "jax.lax.exp(-{R} * {R})", "jnp.power(1.1 + jnp.abs({R}), 1.5)",
        "jnp.mod({S}, 1.5)", "jnp.trunc({S})", "jnp.select([{B}, {B}], [{R}, {R}], 0.5)",
    ],
    "V": [
        "jnp.tanh({V})", "jnp.stack([{R}, {R}, {R}])", "jnp.where({V} > 0.1, {V}, {V})", "jnp.cumsum({V})", "jnp.flip({V})", "jnp.maximum({V}, {V})", "({V})[::-1]",
        "jnp.clip({V}, -1, 1)", "jnp.roll({V}, 1)", "jnp.concatenate([({V})[:1], ({V})[1:]])", "({V} * jnp.arange(3))", "jax.nn.softmax({V})", "({V} - jnp.mean({V}))",
        "jnp.einsum('d,de->e', {V}, mat[h])",
    ],
    "I": [
        "jnp.minimum({I}, {I})", "jnp.abs({I})", "jnp.clip({I}, -2, 6)", "jnp.where({B}, {I}, {I})", "jnp.where({B}, {I}, 3)", "jnp.floor(2 * {S}).astype(jnp.int32)",
        "({B}).astype(jnp.int32)", "jnp.argmax({W})", "few[j].astype(jnp.int32)", "(few[j] + {I})", "jnp.sum({W} > 0)", "jnp.sign({I})",
        "(few[i] - few[j])", "(few[i] * few[j])", "jnp.square({I})", "jnp.floor_divide({I}, 2)", "jnp.remainder({I}, 5)",
    ],
    "B": ["jnp.any({W} > 0.3)", "jnp.all({W} < 0.5)", "jnp.logical_and({B}, {B})", "jnp.isfinite({S})", "jnp.logical_not({I} > 1)", "jnp.where({B}, {B}, {B})", "({I} < {S})",
          "(few[i] == few[j])"],
    "P": ["jnp.clip({I}, 0, n - 1)", "jnp.clip({I}, -n, n - 1)", "jnp.abs({I}) % n", "jnp.where({B}, i, j)"],
}  # fmt: skip

_KINDS = {"real": "R", "vector": "V", "integer": "I", "boolean": "B"}


class Program:
    """The text of score_mod(s, b, h, i, j) and mask_mod(b, h, i, j)."""

    def __init__(self, seed, templates):
        self._random = random.Random(seed)
        self._templates = {kind: [*_COMMON[kind], *templates[kind]] for kind in _COMMON}
        tanh = "torch.tanh" if templates is TORCH else "jnp.tanh"
        helper = f"def bent(x, strength=0.75):\n    return {tanh}(x * strength) + strength"
        score, mask = self._function("score_mod(s, b, h, i, j)", "R", True), self._function("mask_mod(b, h, i, j)", "B", False)
        self.source = f"{helper}\n\n\n{score}\n\n\n{mask}\n"

    def _function(self, head, kind, with_score):
        self._names = {kind: [] for kind in "RVIB"}
        lines = [f"def {head}:"]
        for at in range(self._random.randint(0, 4)):
            of = self._random.choice(list(_KINDS))
            lines.append(f"    {of}{at} = {self._expression(_KINDS[of], self._random.randint(1, 2), with_score)}")
            self._names[_KINDS[of]].append((f"{of}{at}", with_score))
        if kind == "R" and self._random.random() < 0.2:
            lines += ["    total = scale", f"    for step in range({self._random.randint(1, 3)}):", f"        total = total * 0.5 + step * {self._expression('R', 1, True)}"]
            self._names["R"].append(("total", True))
        first = self._random.choice(("s + ", "0.5 * s + ", "s - ")) if kind == "R" else ""
        return "\n".join([*lines, f"    return {first}{self._expression(kind, 2, with_score)}"])

    def _expression(self, kind, depth, with_score):
        if kind == "N":
            return self._random.choice((f"{self._random.uniform(-2, 2):.2f}", "0.5", "2", "1", "-1.5", "3"))
        if kind == "A":
            return str(self._random.randrange(-3, 3))
        if kind in "SWI":  # what jumps
            kind, with_score = {"S": "R", "W": "V", "I": "I"}[kind], False
        names = [name for name, of_score in self._names.get(kind, ()) if with_score or not of_score]
        if kind == "R" and with_score:
            names += ["s", "s", "s"]
        leaf = depth <= 0 or self._random.random() < 0.1
        template = self._random.choice([*_LEAVES[kind], *names, *names]) if leaf else self._random.choice(self._templates[kind] or _LEAVES[kind])
        return re.sub(r"\{(\w)\}", lambda found: self._expression(found[1], depth - 1, with_score and kind != "B"), template)
