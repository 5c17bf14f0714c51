"""Every name that tracing accepts x its forms (function, method, operator) x dtypes x arguments x views: values, gradients and dtypes against torch.

One key for each query: the log of the softmax's denominator is the score, which is the function's value. torch computes the same of each element.
A call that torch refuses must be refused; one that foveal refuses, and torch does not, stands in a list here.
"""

import itertools
import math
import operator

import pytest
import torch
import torch.nn.functional as F

import foveal
import foveal.describe
import foveal.torch
from foveal.torch.tracing import composed, shapes
from foveal.torch.tracing.table import TABLE

REALS = [-2.5, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 1.75, 3.0]  # with the kinks and ties of the functions below
OTHERS = [0.5, -1.0, 2.0, 0.0, 1.0, 0.25, -0.5, 1.0, 1.5, -3.0]
THIRDS = [1.0, 0.5, -1.0, 2.0, -0.5, 0.25, 3.0, 0.75, -2.0, 1.25]
N = len(REALS)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
REFUSED = (TypeError, ValueError, RuntimeError, NotImplementedError, IndexError, AttributeError)


def operand(values, dtype):
    x = torch.tensor(values, dtype=torch.float64)
    if dtype == torch.bool:
        return x > 0
    if not dtype.is_floating_point:
        x = (x * 4).abs() if dtype == torch.uint8 else x * 4
    return x.to(dtype)


def ours(fn, *arrays):
    """fn of the arrays' elements, by attention; and the dtype that tracing gave it."""
    q, look = torch.zeros(1, len(arrays[0]), 1, 1, dtype=torch.float64), []

    def score_mod(s, b, h, i, j):
        found = fn(*(x[i] for x in arrays))
        look.append((found.dtype, found.shape))
        return found.double()

    foveal.describe._traces.clear()  # of functions alike, of tensors that lay where these do
    lse = foveal.torch.attention(q, q[:, :1], q[:, :1], score_mod, return_lse=True)[1][0, 0]
    return lse, look[0]


def theirs(fn, *arrays):
    return torch.stack([fn(*(x[at] for x in arrays)) for at in range(len(arrays[0]))])


def by_cpu(fn):
    return lambda *x: fn(*[t.cpu() for t in x]).to(x[0].device)


def wrong(fn, arrays, may_refuse=False, gradients=True, truth=None):
    """What differs between foveal and torch, which computes truth where that is given; None: nothing."""
    truth = fn if truth is None else truth
    try:
        expected = theirs(truth, *arrays)
    except REFUSED as error:
        if any(words in str(error) for words in ("not implemented for", "not supported", "no longer supported")):
            return None  # by this kernel of torch, for its dtype
        try:
            ours(fn, *arrays)
        except REFUSED:
            return None
        return f"computed, but torch says: {str(error)[:80]}"
    if expected.is_complex():
        return None
    try:
        found, (dtype, shape) = ours(fn, *arrays)
    except REFUSED as error:
        return None if may_refuse else f"refused: {str(error)[:120]}"
    if dtype != expected.dtype or shape != ():
        return f"{dtype}{list(shape)} and not {expected.dtype}"
    wide = expected.double()
    finite = wide.isfinite()
    tolerance = TOLERANCE.get(dtype, 1e-9)
    if any(x.is_floating_point() for x in arrays):
        tolerance = max(tolerance, *[TOLERANCE.get(x.dtype, 0.0) for x in arrays])
    if not torch.allclose(found[finite], wide[finite], rtol=tolerance, atol=tolerance):
        at = int((found - wide).abs().where(finite, 0.0).argmax())
        return f"{float(found[at])} and not {float(wide[at])} at {[x[at].item() for x in arrays]}"
    trained = [x for x in arrays if x.dtype in (torch.float64, torch.float32)]
    if not gradients or not trained or dtype not in (torch.float64, torch.float32):
        return None
    try:
        return wrong_gradients(fn, [x[finite] for x in arrays], tolerance * 10, truth)
    except RuntimeError as error:
        if "derivative for" in str(error) or "Subtraction, the `-` operator" in str(error):  # torch has none, or cannot compute its own
            return None
        raise


def wrong_gradients(fn, arrays, tolerance, truth):
    results = []
    for way in (lambda *x: ours(fn, *x)[0], lambda *x: theirs(truth, *x).double()):
        leaves = [x.detach().clone().requires_grad_(x.dtype in (torch.float64, torch.float32)) for x in arrays]
        out = way(*leaves)
        trained = [x for x in leaves if x.requires_grad]
        found = torch.autograd.grad(out.sum(), trained, allow_unused=True) if out.requires_grad else [None] * len(trained)
        results.append([torch.zeros_like(x) if g is None else g for g, x in zip(found, trained)])
    for at, (a, b) in enumerate(zip(*results)):
        usual = b.isfinite()
        if a.dtype != b.dtype or not torch.allclose(a[usual], b[usual], rtol=tolerance, atol=tolerance):
            where = int((a - b).abs().where(usual, 0.0).argmax())
            return f"gradient {at}: {float(a[where])} and not {float(b[where])} at {[x[where].item() for x in arrays]}"
    return None


def forms_of(name):
    """Where torch has this name: (what it is called, the function)."""
    for module, where in ((torch, "torch"), (F, "F"), (torch.special, "special")):
        fn = getattr(module, name, None)
        if callable(fn):
            yield f"{where}.{name}", fn
    if callable(getattr(torch.Tensor, name, None)):
        yield f"method.{name}", lambda x, *arguments, **named: getattr(x, name)(*arguments, **named)


# ---- names of the table ----

TWO = set(
    "add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod pow float_power maximum minimum max min fmax fmin logaddexp logaddexp2 "
    "hypot xlogy isclose eq ne not_equal lt less le less_equal gt greater ge greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or "
    "bitwise_xor bitwise_left_shift bitwise_right_shift clamp_min clamp_max prelu copysign".split()
)
THREE = {"lerp", "addcmul", "addcdiv", "clamp", "clip"}
OF_32_BITS_ON_GPUS = {"hardsigmoid", "hardswish"}  # a sixth in torch's kernels, also of doubles
OF_ARRAYS = set(
    "sum mean prod amax amin any all logsumexp count_nonzero norm vector_norm dot inner matmul mv mm where masked_fill zeros_like ones_like new_zeros "
    "new_ones full_like new_full new_tensor to type float double half bfloat16 int long short char bool byte type_as contiguous clone cpu cuda item detach "
    "threshold softmax log_softmax linear embedding index_select var std isin bucketize searchsorted einsum normalize dropout layer_norm rms_norm group_norm cumsum cumprod".split()
)
OF_ARRAYS |= set(composed.TABLE)
MOVED = {name for name, meaning in TABLE.items() if meaning in (shapes.moved, shapes.moved_as)}
OPERATORS = {"truediv": operator.truediv, "floordiv": operator.floordiv, "mod": operator.mod, "and": operator.and_, "or": operator.or_,
             "xor": operator.xor, "lshift": operator.lshift, "rshift": operator.rshift, "invert": operator.invert}  # fmt: skip
NAMES = [name for name in TABLE if name not in OF_ARRAYS | MOVED]
FORMS = [(name, where, fn) for name in NAMES for where, fn in [*forms_of(name), *([(f"operator.{name}", OPERATORS[name])] if name in OPERATORS else [])]]
FORMS += [(name, f"operator.{name}", getattr(operator, name)) for name in "add sub mul pow eq ne lt le gt ge abs neg pos".split()]

# What foveal refuses and torch does not: (name, dtypes for which).
INTEGERS = [dtype for dtype in DTYPES if not dtype.is_floating_point]
REFUSALS = {
    "pow": INTEGERS,  # of integers, with an exponent that is no constant
    "nan_to_num": DTYPES,  # without posinf and neginf
    **dict.fromkeys(("lshift", "rshift"), [torch.bool]),  # by torch on meta tensors
}


def operands_of(name, dtypes):
    return [operand(x, dtype) for x, dtype in zip([REALS, OTHERS, THIRDS], dtypes)]


def usual(name, arrays):
    """Without integer division by 0, which gives whatever the machine does."""
    if name in ("floor_divide", "floordiv", "remainder", "mod", "fmod", "div", "divide") and not arrays[-1].is_floating_point():
        kept = arrays[-1] != 0
        return [x[kept] for x in arrays]
    return arrays


@pytest.mark.parametrize("name, where, fn", FORMS, ids=[where for _, where, _ in FORMS])
def test_dtypes(name, where, fn):
    """Of one dtype, and of all pairs: torch's rules of promotion."""
    count = 3 if name in THREE else 2 if name in TWO or (name in OPERATORS and name != "invert") else 1
    combinations = [(dtype,) * count for dtype in DTYPES]
    if count == 2 and where.startswith("method"):  # the same function under another name
        combinations += [(dtype, other) for dtype in DTYPES for other in (torch.float32, torch.uint8)]
    elif count == 2:
        combinations = list(itertools.product(DTYPES, DTYPES))
    if where.startswith("operator.") and name in ("add", "sub", "mul", "pow", "eq", "ne", "lt", "le", "gt", "ge"):
        combinations, count = list(itertools.product(DTYPES, DTYPES)), 2
    found = {}
    for dtypes in combinations:
        arrays = usual(name, operands_of(name, dtypes[:count]))
        truth = by_cpu(fn) if name in OF_32_BITS_ON_GPUS else fn
        difference = wrong(fn, arrays, any(dtype in REFUSALS.get(name, ()) for dtype in dtypes), truth=truth)
        if difference is not None:
            found[", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)] = difference
    assert not found, "; ".join(f"{key}: {value}" for key, value in list(found.items())[:12])


# ---- numbers as operands, arguments by position and by name ----

OF_ARRAYS_ALONE = {"prelu", "maximum", "minimum", "fmax", "fmin", "max", "min", "logaddexp", "logaddexp2", "hypot", "logical_and", "logical_or", "logical_xor", "isclose"}
POWERS = {"pow", "float_power"}
ALIASES = {"subtract", "multiply", "divide", "true_divide", "not_equal", "less", "less_equal", "greater", "greater_equal"}
BINARY = sorted((TWO & set(NAMES)) - OF_ARRAYS_ALONE - ALIASES)
NUMBERS = [2, -3, 0.5, True, 300, 2**33 + 5]


@pytest.mark.parametrize("name", BINARY)
def test_numbers_as_operands(name):
    """Of each type: torch's promotion of numbers beside arrays."""
    found = {}
    for dtype, number, (where, fn) in itertools.product(DTYPES, NUMBERS, forms_of(name)):
        if number is NUMBERS[-1] and dtype.is_floating_point:
            continue  # which do not hold it
        if where.startswith("method") and dtype not in (torch.float64, torch.uint8):
            continue
        if name in POWERS and (number is True or number > 2):
            continue
        arrays = [operand(REALS, dtype)]
        refused = dtype in REFUSALS.get(name, ()) and name == "pow"
        for call, form in ((lambda x: fn(x, number), where), (lambda x: fn(number, x), f"{where} reflected")):
            if "reflected" in form and (where.startswith("method") or name in ("rsub", "clamp_min", "clamp_max", "isclose")):
                continue
            if "reflected" in form and name in ("floor_divide", "remainder", "fmod", "div", "divide") and not dtype.is_floating_point:
                arrays = [arrays[0][arrays[0] != 0]]
            difference = wrong(call, arrays, refused, gradients=dtype == torch.float64)
            if difference is not None:
                found[f"{form} {dtype} {number}"] = difference
    assert not found, "; ".join(f"{key}: {value}" for key, value in list(found.items())[:12])


OPERATIONS = "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift lt le gt ge eq ne".split()


@pytest.mark.parametrize("name", OPERATIONS)
def test_numbers_beside_operators(name):
    fn, found = getattr(operator, name), {}
    for dtype, number, reflected in itertools.product(DTYPES, NUMBERS, (False, True)):
        if number is NUMBERS[-1] and dtype.is_floating_point:
            continue
        if name == "pow" and (number is True or number > 2):
            continue
        x = operand([abs(v) / 4 for v in OTHERS] if "shift" in name and reflected else REALS, dtype)
        if name in ("floordiv", "mod", "truediv") and reflected and not dtype.is_floating_point:
            x = x[x != 0]
        call = (lambda x: fn(number, x)) if reflected else (lambda x: fn(x, number))
        difference = wrong(call, [x], name == "pow" or (dtype == torch.bool and "shift" in name), gradients=dtype == torch.float64)
        if difference is not None:
            found[f"{'reflected ' if reflected else ''}{dtype} {number}"] = difference
    assert not found, "; ".join(f"{key}: {value}" for key, value in list(found.items())[:12])


# (function of x, y, z) for each way to write an argument.
ARGUMENTS = {
    "add alpha": lambda x, y, z: torch.add(x, y, alpha=3),
    "add input other": lambda x, y, z: torch.add(input=x, other=y),
    "sub alpha real": lambda x, y, z: x.sub(y, alpha=0.5),
    "rsub alpha": lambda x, y, z: torch.rsub(x, y, alpha=2),
    "div floor": lambda x, y, z: torch.div(x, y * 4 + 9, rounding_mode="floor"),
    "div trunc": lambda x, y, z: x.div(y * 4 + 9, rounding_mode="trunc"),
    "div None": lambda x, y, z: torch.div(x, y * 4 + 9, rounding_mode=None),
    "divide floor number": lambda x, y, z: torch.divide(x, 3, rounding_mode="floor"),
    "clamp": lambda x, y, z: torch.clamp(x, -1, 1),
    "clamp names": lambda x, y, z: x.clamp(min=-1, max=1),
    "clamp max": lambda x, y, z: x.clamp(max=0.75),
    "clamp None": lambda x, y, z: torch.clamp(x, None, 2),
    "clamp tensors": lambda x, y, z: torch.clamp(x, min=y),
    "clip": lambda x, y, z: torch.clip(x, -1.5, 1.5),
    "clamp crossed": lambda x, y, z: x.clamp(1, -1),
    "clamp_min": lambda x, y, z: x.clamp_min(0),
    "clamp_max": lambda x, y, z: torch.clamp_max(x, 1),
    "where": lambda x, y, z: torch.where(x > y, x, y),
    "where numbers": lambda x, y, z: torch.where(x > y, 1, 0),
    "where real": lambda x, y, z: torch.where(x > y, 1.5, x),
    "where method": lambda x, y, z: x.where(y > 0, z),
    "where condition": lambda x, y, z: torch.where(condition=x > 0, input=y, other=z),
    "where integers": lambda x, y, z: torch.where(x > 0, y.long(), z),
    "masked_fill": lambda x, y, z: x.masked_fill(y > 0, -1.0),
    "masked_fill tensor": lambda x, y, z: torch.masked_fill(x, y > 0, torch.tensor(2, dtype=x.dtype)),
    "lerp": lambda x, y, z: torch.lerp(x, y, 0.25),
    "lerp far": lambda x, y, z: x.lerp(y, 0.75),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=2),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z * 4 + 17, value=0.5),
    "isclose": lambda x, y, z: torch.isclose(x, y, rtol=0.25, atol=0.5),
    "isclose equal_nan": lambda x, y, z: torch.isclose(x, y, equal_nan=True),
    "round decimals": lambda x, y, z: torch.round(x * 1.37, decimals=1),
    "round tens": lambda x, y, z: (x * 13.7).round(decimals=-1),
    "leaky_relu": lambda x, y, z: F.leaky_relu(x, 0.2),
    "elu": lambda x, y, z: F.elu(x, alpha=0.5),
    "celu": lambda x, y, z: F.celu(x, 0.5),
    "celu torch": lambda x, y, z: torch.celu(x, 2.0),
    "hardtanh": lambda x, y, z: F.hardtanh(x, -2.0, 0.5),
    "softplus": lambda x, y, z: F.softplus(x, 3, 2),
    "threshold": lambda x, y, z: F.threshold(x, 0.5, -2.0),
    "threshold torch": lambda x, y, z: torch.threshold(x, 0.5, -2.0),
    "gelu tanh": lambda x, y, z: F.gelu(x, approximate="tanh"),
    "logit eps": lambda x, y, z: torch.logit(x, 0.1),
    "special logit eps": lambda x, y, z: torch.special.logit(x, eps=0.1),
    "nan_to_num": lambda x, y, z: torch.nan_to_num(x / y, 1.0, 2.0, -2.0),
    "nan_to_num nan": lambda x, y, z: torch.nan_to_num(x / y, nan=3.0),
    "xlogy": lambda x, y, z: torch.special.xlogy(x, y),
    "float_power": lambda x, y, z: torch.float_power(x.abs() + 1, y),
    "pow 2": lambda x, y, z: torch.pow(x, 2),
    "pow 0": lambda x, y, z: x**0,
    "pow 1": lambda x, y, z: x**1,
    "pow 7": lambda x, y, z: x**7,
    "pow -1": lambda x, y, z: x**-1,
    "pow half": lambda x, y, z: x.abs() ** 0.5,
    "pow exponent": lambda x, y, z: torch.pow(input=x, exponent=3),
    "pow of a number": lambda x, y, z: 2.0**x,
    "pow of two": lambda x, y, z: torch.pow(2, x.abs()),
    "max other": lambda x, y, z: torch.max(x, other=y),
    "maximum": lambda x, y, z: torch.maximum(x, y),
    "to": lambda x, y, z: x.to(torch.float32) + y,
    "to other": lambda x, y, z: x.to(y),
    "to device": lambda x, y, z: x.to(str(x.device), torch.float64),
    "to keywords": lambda x, y, z: x.to(dtype=torch.int32, copy=True),
    "type": lambda x, y, z: x.type(torch.int16) * y,
    "type_as": lambda x, y, z: (x > 0).type_as(y),
    "casts": lambda x, y, z: x.int() + y.short() - z.char(),
    "uint8": lambda x, y, z: x.abs().byte() * 100,
    "bool": lambda x, y, z: x.bool() | y.bool(),
    "half": lambda x, y, z: x.half() + y.half(),
    "bfloat16": lambda x, y, z: x.bfloat16() * 2,
    "full_like": lambda x, y, z: torch.full_like(x, 2) * y,
    "full_like dtype": lambda x, y, z: torch.full_like(x, 2.5, dtype=torch.float64) * y,
    "zeros_like": lambda x, y, z: torch.zeros_like(x, dtype=torch.int64) + y,
    "ones_like": lambda x, y, z: torch.ones_like(input=x) + y,
    "new_zeros": lambda x, y, z: x.new_zeros(()) + y,
    "new_ones": lambda x, y, z: x.new_ones((), dtype=torch.float32) + y,
    "new_full": lambda x, y, z: x.new_full((), 3) + y,
    "new_tensor": lambda x, y, z: x.new_tensor(1.5) + y,
    "abs chain": lambda x, y, z: abs(-x) + (+y),
    "operators": lambda x, y, z: (x + 2) * y - z / 2 + (1 - x),
    "compare chain": lambda x, y, z: (x < y) & (y <= z) | ~(x == z),
    "xor": lambda x, y, z: (x > 0) ^ (y > 0),
    "integers": lambda x, y, z: (x.long() & 7) + (y.long() | 3) - (z.long() ^ 5) + (~x.long()),
    "integer division": lambda x, y, z: x.long() // 3 + y.long() % 3 + torch.fmod(z.long(), 2),
    "detach": lambda x, y, z: x.detach() * y,
    "relu twice": lambda x, y, z: F.relu(x) + torch.relu(y) + z.relu(),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name):
    found = {}
    for dtype in DTYPES:
        arrays = [operand(values, dtype) for values in (REALS, OTHERS, THIRDS)]
        refused = "nan_to_num nan" in name or (name.startswith(("pow", "float_power")) and not dtype.is_floating_point)
        difference = wrong(ARGUMENTS[name], arrays, refused)
        if difference is not None:
            found[dtype] = difference
    assert not found, "; ".join(f"{key}: {value}" for key, value in found.items())


@pytest.mark.parametrize("call", [
    lambda x: torch.exp(x, out=torch.empty(())), lambda x: torch.add(x, x, out=torch.empty(())), lambda x: torch.sum(x, 0, out=torch.empty(())),
    lambda x: x.detach_(), lambda x: x.requires_grad_(),
    lambda x: torch.exp(x, wrong=1), lambda x: x.exp(3), lambda x: torch.full_like(x, 1.0, requires_grad=True), lambda x: F.dropout(x),
    lambda x: x.view(torch.int64), lambda x: x.view(dtype=torch.int64), lambda x: x[None].view(torch.int64)[0],
    lambda x: torch.bernoulli(x), lambda x: x[None][[True]][0], lambda x: torch.sort(x.unsqueeze(0))[0][0], lambda x: torch.cummax(x.unsqueeze(0), 0)[0][0],
], ids=range(16))  # fmt: skip
def test_what_is_not_understood_is_refused(call):
    with pytest.raises(REFUSED):
        ours(call, operand(THIRDS, torch.float64).abs())


def test_bits_of_a_captured_row_are_not_read_as_another_type():
    x, q = rows(torch.float32), torch.zeros(1, N, 1, 1)
    for view in (lambda row: row.view(torch.int32), lambda row: row.view(dtype=torch.int32)):
        with pytest.raises(NotImplementedError, match="foveal.torch.attention: torch.view in a score or mask: a dtype, by which bits"):
            foveal.torch.attention(q, q, q, lambda s, b, h, i, j: s + view(x[i])[1, 0])


# ---- infinities and NaN ----


@pytest.mark.parametrize("name, where, fn", [form for form in FORMS if form[0] not in TWO | THREE | {"nan_to_num"}], ids=lambda x: x if isinstance(x, str) else "")
def test_infinities(name, where, fn):
    """Where the function of an infinity or of NaN is finite."""
    if name in OPERATORS and name != "invert" or where.startswith("operator.") and name in "add sub mul pow eq ne lt le gt ge".split():
        pytest.skip("of two")
    x = torch.tensor([math.inf, -math.inf, math.nan, 700.0, -700.0, 1e-30, -1e-30, 89.0, -89.0, 3e5], dtype=torch.float64)
    difference = wrong(fn, [x], gradients=False)
    assert difference is None


# ---- arrays of expressions: reductions, products, what moves elements ----

SHAPED = {
    "outer": lambda e: torch.outer(e[0], e[1])[1, 2] + e[0].outer(e[1])[0, 0],
    "ger": lambda e: torch.ger(e[0], e[1])[1, 0],
    "vdot": lambda e: torch.vdot(e[0], e[1]),
    "vecdot": lambda e: torch.linalg.vecdot(e, e.flip(1))[1] + torch.linalg.vecdot(e, e, dim=0)[2],
    "cross": lambda e: torch.linalg.cross(e, e.flip(0))[0, 1] + torch.cross(e[0], e[1], dim=0)[2],
    "trace": lambda e: torch.trace(e[:, 1:]) + e.double().trace(),
    "tril": lambda e: (torch.tril(e) + e.tril(-1)).sum(),
    "triu": lambda e: torch.triu(e, diagonal=1).sum(),
    "dist": lambda e: torch.dist(e.double(), e.double().flip(0)) + torch.dist(e[0].double(), e[1].double(), 1),
    "pairwise_distance": lambda e: F.pairwise_distance(e.double(), e.double().flip(1))[1] + F.pairwise_distance(e[0].double(), e[1].double(), p=1.0, eps=0.1, keepdim=True)[0],
    "cdist": lambda e: torch.cdist(e.double(), e.double().flip(1))[1, 0] + torch.cdist(e.double(), e.double(), p=1.0)[0, 1],
    "diff": lambda e: torch.diff(e)[1, 1],
    "diff n": lambda e: e.diff(2, 1)[0, 0] + torch.diff(e, dim=0, prepend=e[:1], append=e[:1])[2, 1],
    "glu": lambda e: F.glu(e.double(), 0)[0, 1],
    "softmin": lambda e: F.softmin(e.double(), 1)[0, 1],
    "aminmax": lambda e: torch.aminmax(e)[1] - e.aminmax(dim=1, keepdim=True).min[1, 0],
    "nansum": lambda e: torch.nansum(e, 1)[0] + e.nansum(),
    "nanmean": lambda e: torch.nanmean(e.double(), 0)[1],
    "one_hot": lambda e: F.one_hot(e.long().clamp(0, 4), 5)[1, 2, 3] * e[0, 0],
    "pad": lambda e: F.pad(e, (1, 2))[1, 3] + F.pad(e, (-1, 1, 0, 1), value=2)[2, 1],
    "pad by nothing": lambda e: F.pad(e, (0, 0, 1, -1))[1, 1],
    "flipud": lambda e: torch.flipud(e)[0, 1],
    "fliplr": lambda e: e.fliplr()[0, 0],
    "rot90": lambda e: torch.rot90(e)[2, 1],
    "moveaxis": lambda e: e.moveaxis(0, 1)[2, 1],
    "unfold": lambda e: e.unfold(1, 2, 1)[1, 0, 1],
    "tensor_split": lambda e: torch.tensor_split(e, 2, 1)[1][0, 0],
    "dstack": lambda e: torch.dstack([e[0], e[1]])[0, 2, 1],
    "column_stack": lambda e: torch.column_stack([e[0], e[1]])[2, 0],
    "repeat_interleave": lambda e: e.repeat_interleave(2, 1)[1, 3] + torch.repeat_interleave(e, 3, dim=0)[4, 0],
    "var": lambda x: x.var() + x.var(1, unbiased=False)[0] + torch.var(x, dim=(0, 1), correction=2),
    "std": lambda x: x.std() + x.std(0)[1] + torch.std(x[0], False),
    "isin": lambda x: torch.isin(x[0], x[1].clone()).sum() + torch.isin(x[1].clone(), x[0, :2].clone(), invert=True).sum(),
    "layer_norm": lambda e: F.layer_norm(e, (3,))[1, 2],
    "layer_norm of all": lambda e: F.layer_norm(e.double(), e.shape, WEIGHT[:, :3], WEIGHT[:, 1:], eps=0.1)[0, 1],
    "layer_norm bias": lambda e: torch.layer_norm(e.double(), (3,), None, WEIGHT[0, :3])[1, 0],
    "rms_norm": lambda e: F.rms_norm(e, (3,))[0, 1],
    "rms_norm weight": lambda e: torch.rms_norm(e.double(), (3,), WEIGHT[1, :3], 0.25)[1, 2],
    "group_norm": lambda e: F.group_norm(e, 3)[1, 1],
    "group_norm weight": lambda e: torch.group_norm(e.double()[None], 1, WEIGHT[0, :2], WEIGHT[1, :2], 0.5)[0, 1, 2],
    "cumsum": lambda e: e.cumsum(1)[1, 2],
    "cumsum dtype": lambda e: torch.cumsum(e, 0, dtype=torch.float64)[1, 0],
    "cumprod": lambda e: torch.cumprod(e, -1)[0, 2],
    "cumprod method": lambda e: e.cumprod(dim=0)[1, 1] * 2,
    "sum": lambda e: e.sum(),
    "sum dim": lambda e: torch.sum(e, 0)[1],
    "sum keepdim": lambda e: e.sum(dim=-1, keepdim=True)[1, 0],
    "sum dims": lambda e: e.sum((0, 1)),
    "sum no dims": lambda e: e.sum(dim=()),
    "sum dtype": lambda e: torch.sum(e, 1, dtype=torch.float64)[0],
    "mean": lambda e: e.double().mean(0)[2],
    "mean dtype": lambda e: torch.mean(e, dtype=torch.float64),
    "prod": lambda e: torch.prod(e, 1)[0],
    "prod all": lambda e: e.prod(),
    "amax": lambda e: e.amax((0, 1)),
    "amin": lambda e: torch.amin(e, dim=1, keepdim=True)[1, 0],
    "max": lambda e: e.max(),
    "min": lambda e: torch.min(e),
    "any": lambda e: e.any(0)[1],
    "all": lambda e: torch.all(e),
    "any dims": lambda e: torch.any(e, dim=(0, 1)),
    "logsumexp": lambda e: torch.logsumexp(e.double(), (0, 1)),
    "count_nonzero": lambda e: torch.count_nonzero(e),
    "count_nonzero dim": lambda e: e.count_nonzero(dim=0)[0],
    "softmax": lambda e: torch.softmax(e.double(), 0)[1, 2],
    "softmax method": lambda e: (e.double() * 3).softmax(-1)[0, 0],
    "softmax dtype": lambda e: F.softmax(e, dim=1, dtype=torch.float64)[1, 0],
    "softmax of integers": lambda e: e.softmax(0)[0, 0],
    "log_softmax": lambda e: F.log_softmax(e.double(), -1)[0, 1],
    "linear": lambda e: F.linear(e.double(), WEIGHT[:, :3])[1, 0],
    "linear bias": lambda e: F.linear(e[0].double(), WEIGHT[:, :3], WEIGHT[:, 3])[1],
    "linear one": lambda e: F.linear(e.double(), WEIGHT[0, :3], WEIGHT[0, 0])[1],
    "embedding": lambda e: F.embedding(e[0, 1].long() & 1, WEIGHT)[2] * e[0, 0],
    "embedding of many": lambda e: F.embedding(e[0].long() & 1, WEIGHT)[2, 1] * e[0, 0],
    "index_select": lambda e: torch.index_select(WEIGHT, 1, e[0].long() & 3)[1, 2] * e[0, 0],
    "index_select one": lambda e: WEIGHT.index_select(-2, (e[0, 0].int() & 1))[0, 3] * e[0, 0],
    "index_select of expressions": lambda e: (e * 2).index_select(1, torch.tensor([2, 0]))[1, 0],
    "chosen": lambda e: (e * 2)[e[0, 0].long() & 1, 2],
    "chosen twice": lambda e: (e * 2)[e[0, 0].long() & 1, (e[1, 1].long() & 1) + 1],
    "chosen backwards": lambda e: (e * 2)[1, -1 - (e[0, 0].int() & 1)],
    "chosen row": lambda e: (e * 2)[:, e[0, 2].long() & 1][1],
    "chosen by bytes": lambda e: (e * 2)[e[0, 0].byte() & 1, 2],
    "read by bytes": lambda e: WEIGHT[e[0, 0].byte() & 1, 2] * e[0, 0],
    "norm": lambda e: e.double().norm(),
    "norm 1": lambda e: torch.norm(e.double(), p=1, dim=0)[1],
    "norm inf": lambda e: e.double().norm(math.inf, -1)[1],
    "norm 0": lambda e: torch.linalg.vector_norm(e.double(), 0),
    "vector_norm": lambda e: torch.linalg.vector_norm(e.double() + 0.1, ord=2, dim=(0, 1)),
    "normalize": lambda e: F.normalize(e.double() + 0.1)[1, 2] + F.normalize(e.double() + 0.1, p=1.0, dim=0, eps=1e-3)[0, 1],
    "dropout": lambda e: F.dropout(e, 0.0)[0, 1] + F.dropout(e, 0.5, training=False)[1, 2],
    "linalg.norm": lambda e: torch.linalg.norm(e.double() + 0.1, dim=0)[2],
    "matmul": lambda e: torch.matmul(e, e.transpose(0, 1))[0, 1],
    "dot": lambda e: torch.dot(e[0], e[1]),
    "einsum": lambda e: torch.einsum("ij,kj->ik", e, e)[0, 1] + torch.einsum("ij", e)[1, 2],
    "einsum implicit": lambda e: torch.einsum("ji,j", e, e[:, 0])[2],
    "inner": lambda e: torch.inner(e[0], e[1]),
    "mv": lambda e: torch.mv(e, e[1])[0],
    "mm": lambda e: torch.mm(e, e.t())[1, 1],
    "unsqueeze": lambda e: e.unsqueeze(0)[0, 1, 2],
    "unsqueeze -1": lambda e: torch.unsqueeze(e, -1)[1, 2, 0],
    "squeeze": lambda e: e[None].squeeze(0)[1, 0],
    "squeeze all": lambda e: e[None, :, None].squeeze()[1, 0],
    "reshape": lambda e: e.reshape(3, 2)[2, 0],
    "reshape -1": lambda e: torch.reshape(e, (-1,))[4],
    "view": lambda e: e.clone(memory_format=torch.contiguous_format).view(6)[5],
    "atleast_1d": lambda e: torch.atleast_1d(e[0, 1])[0],
    "flatten": lambda e: e.flatten()[3],
    "ravel": lambda e: torch.ravel(e)[1],
    "unflatten": lambda e: e.flatten().unflatten(0, (3, 2))[1, 1],
    "expand": lambda e: e[:, :1].expand(2, 5)[1, 4],
    "expand_as": lambda e: e[:1].expand_as(e)[1, 2],
    "broadcast_to": lambda e: torch.broadcast_to(e, (4, 2, 3))[3, 1, 0],
    "permute": lambda e: e.permute(1, 0)[2, 1],
    "transpose": lambda e: torch.transpose(e, 0, 1)[2, 0],
    "t": lambda e: e.t()[1, 0],
    "T": lambda e: e.T[2, 1],
    "swapaxes": lambda e: e.swapaxes(0, 1)[1, 1],
    "movedim": lambda e: torch.movedim(e, 0, -1)[2, 0],
    "narrow": lambda e: e.narrow(1, 1, 2)[0, 1],
    "select": lambda e: e.select(1, 2)[1],
    "unbind": lambda e: e.unbind(1)[2][0],
    "split": lambda e: e.split(2, 1)[1][1, 0],
    "split sizes": lambda e: torch.split(e, [1, 2], dim=1)[1][0, 1],
    "chunk": lambda e: e.chunk(2)[1][0, 1],
    "stack": lambda e: torch.stack([e, e * 2])[1, 0, 2],
    "stack dim": lambda e: torch.stack((e[0], e[1]), dim=1)[2, 0],
    "cat": lambda e: torch.cat([e, e + 1], 0)[3, 1],
    "concat": lambda e: torch.concat((e, e), dim=-1)[1, 5],
    "hstack": lambda e: torch.hstack([e, e])[1, 4],
    "vstack": lambda e: torch.vstack([e, e])[2, 1],
    "flip": lambda e: e.flip(0, 1)[0, 0],
    "flip dims": lambda e: torch.flip(e, [1])[1, 0],
    "roll": lambda e: e.roll(1, 1)[0, 0],
    "roll flat": lambda e: torch.roll(e, 2)[0, 1],
    "repeat": lambda e: e.repeat(2, 2)[3, 5],
    "tile": lambda e: torch.tile(e, (2,))[1, 4],
    "diagonal": lambda e: e.diagonal(1)[0],
    "atleast_2d": lambda e: torch.atleast_2d(e[0])[0, 2],
    "negative index": lambda e: e[-1, -2],
    "ellipsis": lambda e: e[..., 1][0],
    "slices": lambda e: e[:, ::2][1, 1],
    "None": lambda e: e[:, None, 1][0, 0],
    "list": lambda e: e[[1, 0]][0, 2],
    "tensor": lambda e: e[torch.tensor([1, 1]), torch.tensor([0, 2])][1],
    "reshape_as": lambda e: e.reshape_as(e.t())[2, 0],
    "view_as": lambda e: e.clone(memory_format=torch.contiguous_format).view_as(e)[1, 0],
    "size": lambda e: e.size(1) * e[0, 0] + e.size()[0] + e.dim() + e.ndim,
    "unpacked": lambda e: (lambda a, b: a[0] * b[2])(*e),
    "loop": lambda e: sum(row[1] for row in e),
    "length": lambda e: e[0, 0] * len(e) + e.shape[1] + e.numel(),
    "where": lambda e: torch.where(e > 0, e, -e)[1, 1],
    "broadcast": lambda e: (e * e[0] + e[:, :1])[1, 2],
    "type": lambda e: e.long().sum(),
    "zeros_like": lambda e: torch.zeros_like(e).sum() + e[0, 0],
    "full_like": lambda e: (torch.full_like(e, 2) * e)[1, 2],
    "new_zeros": lambda e: e.new_zeros(4).sum() + e[0, 0],
    "new_ones": lambda e: e.new_ones((2, 3))[0, 0] + e[0, 0],
}
WEIGHT = operand([[0.5, -1.0, 2.0, 0.25], [1.5, 0.75, -0.5, 1.0]], torch.float64)
VIEWS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "steps": lambda x: torch.stack([x, -x], -1).flatten(-2)[..., ::2],
    "reversed memory": lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "offset": lambda x: torch.cat([x[:1], x])[1:],
    "slice of a larger one": lambda x: torch.cat([x, x], 1)[:, 1:3].roll(1, 1),
}


def rows(dtype):
    """[N, 2, 3]: what is left of a captured tensor."""
    return operand([[[REALS[(i + 3 * a + b) % N] for b in range(3)] for a in range(2)] for i in range(N)], dtype)


@pytest.mark.parametrize("name", SHAPED)
def test_arrays(name):
    found = {}
    for at, (dtype, view) in enumerate([(dtype, "plain") for dtype in DTYPES] + [(torch.float64, view) for view in VIEWS] + [(torch.int32, "steps")]):
        x = VIEWS[view](rows(dtype))
        difference = wrong(SHAPED[name], [x])
        if difference is not None:
            found[f"{dtype} {view}"] = difference
    assert not found, "; ".join(f"{key}: {value}" for key, value in found.items())


def test_every_name_of_the_table_has_a_case():
    written = " ".join([*SHAPED, *ARGUMENTS]).split()
    rest = [name for name in TABLE if name not in NAMES and name not in written]
    assert set(rest) <= NOT_HERE, sorted(set(rest) - NOT_HERE)


# As others under another name, in test_torch_functions, or what a CPU cannot show.
NOT_HERE = {"bucketize", "searchsorted", "long", "short", "float", "double", "byte", "char", "int", "item", "cpu", "cuda", "contiguous", "clone", "getitem", "new_full", "swapdims", "vector_norm"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_expanded_and_overlapping_captures(dtype):
    """Strides of 0 and elements that several places share: their gradients are sums."""
    base = operand(REALS + OTHERS, dtype)
    for view in (
        lambda x: x[:1].expand(N),
        lambda x: x.as_strided((N,), (1,), 3),
        lambda x: x.unfold(0, 3, 1)[:N, 1],
        lambda x: x.reshape(2, N).expand(3, 2, N)[1, 1],
        lambda x: x.as_strided((N,), (2,)),
    ):
        leaf = [base.clone().requires_grad_(dtype.is_floating_point) for _ in range(2)]
        results = [ours(lambda x: x * 2, view(leaf[0]))[0], theirs(lambda x: x * 2, view(leaf[1])).double()]
        torch.testing.assert_close(*results)
        if dtype.is_floating_point:
            torch.testing.assert_close(*[torch.autograd.grad(out.sum(), x)[0] for out, x in zip(results, leaf)])
