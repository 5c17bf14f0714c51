"""Wrong calls at the doors of torch and of arrays: the public function, the argument, what was found, what is accepted."""

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.checkpoint import checkpoint

import foveal
import foveal.torch
from places import seeded

q, k, v = (torch.randn(1, 5, 2, 8, generator=seeded(i)) for i in range(3))
HEADS_FIRST = [t.transpose(1, 2) for t in (q, k, v)]
META = torch.zeros(8, device="meta")
ARRAYS = [t.cpu().numpy() for t in (q, k, v)]
CU = torch.tensor([0, 5], dtype=torch.int32)
TABLE = np.ones(5)

attention = foveal.torch.attention
flex = foveal.torch.flex_attention
sdpa = foveal.torch.scaled_dot_product_attention
varlen = foveal.torch.varlen_attn
COMPILED = torch.compile(lambda x: 2 * x, backend="eager")
MASK_BIAS = torch.ones(5)
STATE = torch.tensor([1, 2])
NESTED = torch.nested.nested_tensor([torch.ones(5, 5)])
BELOW = BlockMask.from_kv_blocks(torch.ones(1, 1, 1, dtype=torch.int32), torch.full((1, 1, 1, 1), -1, dtype=torch.int32), seq_lengths=(5, 5))


def trained():
    return torch.tensor(0.3, requires_grad=True)


class Twice(torch.Tensor):
    """Functions see its elements twice as large."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*[2 * a.as_subclass(torch.Tensor) if isinstance(a, Twice) else a for a in args], **(kwargs or {}))


def twice(t):
    return t.as_subclass(Twice)


BIAS = twice(torch.ones(5))


class Doubled(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return 2 * found if func is torch.tanh else found


def within_a_mode():
    score_mod = lambda s, b, h, i, j: torch.tanh(s)  # noqa: E731
    attention(q, k, v, score_mod)  # traced, and not found again within
    with Doubled():
        attention(q, k, v, score_mod)


class InMetres(np.ndarray):
    """Read in another unit than it is kept in."""

    def __getitem__(self, index):
        return np.asarray(self)[index] / 1000


METRES = np.ones(5).view(InMetres)


def read_only(array=None):
    array = np.zeros_like(ARRAYS[0]) if array is None else array
    array.flags.writeable = False
    return array


def planned(**results):
    q, k, v = ARRAYS
    made = {"out": np.zeros_like(q), "lse": np.zeros((1, 2, 5), np.float32), **results}
    foveal.plan(q, k, v).run(**{"q": q, "k": k, "v": v, **made})


def backward(**changed):
    out, lse = foveal.forward(*ARRAYS)
    return foveal.backward(*ARRAYS, **{"out": out, "lse": lse, "dout": out, **changed})


def paged(function, lengths):
    pool = np.zeros((4, 16, 2, 8), np.float32)
    table, lengths = np.arange(4, dtype=np.int32).reshape(2, 2), np.array(lengths, np.int32)
    return function(np.zeros((2, 3, 2, 8), np.float32), pool, pool, block_table=table, seqlens_kv=lengths)


def packed(**arguments):
    cu = CU.cpu().numpy()
    return foveal.attention(*[a[0] for a in ARRAYS], cu_seqlens=(cu, cu), **arguments)


class Holder:
    table = TABLE


HOLDER = Holder()
COMPLEX, MATRIX = torch.zeros(5, dtype=torch.complex64), np.eye(5).view(np.matrix)

class Attending(torch.nn.Module):
    def forward(self, q):
        return foveal.torch.scaled_dot_product_attention(q, q, q)


WRONG = {
    "a keyword of others": (lambda: attention(q, k, v, is_causal=True), "foveal.torch.attention: is_causal: .*mask=foveal.causal()"),
    "by the first array": (lambda: foveal.attention(q, k, v, is_causal=True), "foveal.attention: is_causal: .*mask=foveal.causal()"),
    "of arrays": (lambda: foveal.attention(*ARRAYS, is_causal=True), "foveal.attention: is_causal: .*mask=foveal.causal()"),
    "forward": (lambda: foveal.forward(*ARRAYS, attn_mask=None), "foveal.forward: attn_mask: .*mask"),
    "plan": (lambda: foveal.plan(*ARRAYS, softmax_scale=1.0), "foveal.plan: softmax_scale: .*scale"),
    "explain": (lambda: foveal.explain(*ARRAYS, wrong=1.0), "foveal.explain: wrong: .*expected "),
    "flex": (lambda: flex(*HEADS_FIRST, is_causal=True), "foveal.torch.flex_attention: is_causal: "),
    "sdpa": (lambda: sdpa(*HEADS_FIRST, mask=None), "foveal.torch.scaled_dot_product_attention: mask: .*attn_mask"),
    "a word as flag": (lambda: sdpa(*HEADS_FIRST, is_causal="no"), "foveal.torch.scaled_dot_product_attention: is_causal: found str 'no'; expected True or False"),
    "a number as flag": (lambda: sdpa(*HEADS_FIRST, enable_gqa=1), "foveal.torch.scaled_dot_product_attention: enable_gqa: found int 1; expected True or False"),
    "a module": (lambda: foveal.torch.Attention(is_causal=True), "foveal.torch.Attention: is_causal: "),
    "meta": (lambda: attention(q.to("meta"), k, v), "foveal.torch.attention: q: on device meta.*expected cpu or cuda"),
    "a captured meta tensor": (lambda: flex(*HEADS_FIRST, lambda s, b, h, i, j: s + META[h]), "flex_attention: .*p0.*: on device meta.*expected cpu or cuda"),
    "a meta parameter": (lambda: attention(q, k, v, "score + x[head]", params={"x": META}), "torch.attention: .*x.*: on device meta"),
    "meta lengths": (lambda: attention(q[0], k[0], v[0], cu_seqlens=(CU.to("meta"), CU)), "torch.attention: cu_seqlens.*: on device meta"),
    "meta in flex": (lambda: flex(HEADS_FIRST[0], *[t.to("meta") for t in HEADS_FIRST[1:]]), "flex_attention: key: .*meta"),
    "sparse": (lambda: attention(q, k.to_sparse(), v), "foveal.torch.attention: k: a tensor of layout torch.sparse_coo; expected a dense"),
    "quantised": (lambda: attention(torch.quantize_per_tensor(q, 0.1, 0, torch.qint8), k, v), "foveal.torch.attention: q: a quantised tensor"),
    "NumPy in torch": (lambda: attention(q, ARRAYS[1], v), "foveal.torch.attention: k: found an array of numpy; expected a tensor of torch"),
    "NumPy first": (lambda: attention(ARRAYS[0], k, v), "foveal.torch.attention: q: found an array of numpy"),
    "a list": (lambda: foveal.attention(ARRAYS[0].tolist(), *ARRAYS[1:]), "foveal.attention: q: found list; expected an array of NumPy, torch"),
    "nothing": (lambda: attention(q, None, v), "foveal.torch.attention: k: found NoneType"),
    "an array's class of one's own": (lambda: foveal.attention(ARRAYS[0].view(InMetres), *ARRAYS[1:]), "foveal.attention: q: a InMetres, which may read as"),
    "such a class captured": (lambda: foveal.attention(*ARRAYS, lambda s, b, h, i, j: s + METRES[i]), "foveal.attention: a captured array: a InMetres"),
    "such a class by name": (lambda: foveal.attention(*ARRAYS, "score + x[q_idx]", params={"x": METRES}), "foveal.attention: .*a InMetres"),
    "a read-only result": (lambda: planned(out=read_only()), "out: a read-only array; expected one that"),
    "read-only statistics": (lambda: planned(lse=read_only(np.zeros((1, 2, 5), np.float32))), "lse: a read-only array; expected one that"),
    "a masked array": (lambda: foveal.attention(np.ma.masked_array(ARRAYS[0]), *ARRAYS[1:]), "q: a NumPy masked array"),
    "a masked array planned": (lambda: foveal.plan(np.ma.masked_array(ARRAYS[0]), *ARRAYS[1:]), "q: a NumPy masked array"),
    "module's call": (lambda: foveal.torch.Attention()(ARRAYS[0], k, v), "foveal.torch.Attention: q: found an array of numpy"),
    "one cu_seqlens": (lambda: attention(q[0], k[0], v[0], cu_seqlens=CU, max_seqlens=(5, 5)), "foveal.torch.attention: cu_seqlens: "),
    "lists of lengths": (lambda: attention(q[0], k[0], v[0], cu_seqlens=([0, 5], [0, 5])), "cu_seqlens"),
    "one length": (lambda: attention(q[0], k[0], v[0], cu_seqlens=(CU, CU), max_seqlens=5), "max_seqlens: "),
    "one of NumPy": (lambda: foveal.attention(*[a[0] for a in ARRAYS], cu_seqlens=CU.cpu().numpy()), "foveal.attention: cu_seqlens: "),
    "varlen's lists": (lambda: varlen(q[0], k[0], v[0], [0, 5], [0, 5], 5, 5), "varlen_attn: cu_seq_q: found list"),
    "varlen's window": (lambda: varlen(q[0], k[0], v[0], CU, CU, 5, 5, window_size=3), "varlen_attn: window_size: found 3; expected a pair"),
    "a mask without its call": (lambda: attention(q, k, v, mask=foveal.causal), r"mask: found foveal.causal itself; expected .*foveal.causal\(\)"),
    "of arrays, too": (lambda: foveal.attention(*ARRAYS, foveal.softcap), r"score_mod: found foveal.softcap itself; expected .*foveal.softcap\(cap"),
    "flex's mask": (lambda: flex(*HEADS_FIRST, block_mask=foveal.window), r"foveal.torch.flex_attention: block_mask: found foveal.window itself"),
    "a tensor as mask": (lambda: attention(q, k, v, mask=torch.ones(5, 5, dtype=torch.bool)), "mask: found Tensor; expected a function"),
    "scale as text": (lambda: attention(q, k, v, scale="0.1"), "foveal.torch.attention: scale: found str '0.1'; expected a number"),
    "scale as text, arrays": (lambda: foveal.attention(*ARRAYS, scale="0.1"), "foveal.attention: scale: found str '0.1'"),
    "scale as text, flex": (lambda: flex(*HEADS_FIRST, scale="0.1"), "foveal.torch.flex_attention: scale: found str '0.1'"),
    "dropout as text": (lambda: attention(q, k, v, dropout_p="x"), "foveal.torch.attention: dropout_p: found str 'x'"),
    "deterministic": (lambda: attention(q, k, v, deterministic="yes"), "deterministic: found str 'yes'"),
    "a negative seed": (lambda: attention(q, k, v, dropout_p=0.1, seed=-1), "seed: found .*-1"),
    "an offset alone": (lambda: attention(q, k, v, dropout_p=0.1, offset=3), "foveal.torch.attention: offset: found 3 without a seed"),
    "a real seed": (lambda: attention(q, k, v, dropout_p=0.1, seed=1.5), "seed: found .*1.5"),
    "params": (lambda: attention(q, k, v, "score + b[q_idx]", params=[torch.ones(5)]), "params: found list"),
    "a number as parameter": (lambda: attention(q, k, v, "score + b[q_idx]", params={"b": 1.0}), "params.*float"),
    "an array as parameter": (lambda: attention(q, k, v, "score + b[q_idx]", params={"b": TABLE}), "params.*numpy"),
    "a list in torch": (lambda: attention(q.tolist(), k, v), "attention: q: found list; expected a tensor of torch$"),
    "a number as sink": (lambda: attention(q, k, v, sink=1.0), "sink: found float"),
    "options": (lambda: attention(q, k, v, options={"backend": "cpu"}), "options: found dict"),
    "an empty array": (lambda: foveal.plan(*[a[:, :0] for a in ARRAYS]), "foveal.plan: q: size 0 in dimension 1; expected at least 1"),
    "empty arrays that do not fit": (lambda: foveal.attention(ARRAYS[0][:0], *ARRAYS[1:]), "foveal.attention: k: batch 1; expected 0, q's"),
    "empty arrays of integers": (lambda: foveal.attention(*[a[:, :0].astype(int) for a in ARRAYS]), "foveal.attention: q: dtype int64; expected"),
    "an array that torch's tracing does not see": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + TABLE[i]), "score_mod: a symbol indexes an array that tracing cannot see, as it is no tensor.*expected a tensor: torch.as_tensor"),
    "kernel_options": (lambda: flex(*HEADS_FIRST, kernel_options={"checked": 2}), "flex_attention: kernel_options: found 'checked': 2; expected True or False"),
    "random numbers": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + torch.rand(())), "torch.rand in a score or mask draws random numbers"),
    "dropout of a captured tensor": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + torch.dropout(torch.ones(5), 0.5, True)[i]), "torch.bernoulli_ in a score or mask draws random"),
    "a distribution's sample": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + torch.distributions.Gamma(1.0, 1.0).sample()), "torch._standard_gamma in a score or mask draws random"),
    "random numbers like others": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + torch.randn_like(torch.ones(3))[1]), "torch.randn_like in a score"),
    "random numbers in place": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + torch.empty(()).uniform_()), "torch.uniform_ in a score or mask"),
    "an attribute of an object": (lambda: foveal.attention(*ARRAYS, lambda s, b, h, i, j: s + HOLDER.table[i]), "score_mod: a symbol indexes an array that tracing cannot see"),
    "a trained scale": (lambda: attention(q, k, v, scale=trained()), "foveal.torch.attention: scale: found a tensor that requires a gradient; .*score_mod"),
    "a trained scale in flex": (lambda: flex(*HEADS_FIRST, scale=trained()), "foveal.torch.flex_attention: scale: found a tensor that requires a gradient"),
    "a trained scale in sdpa": (lambda: sdpa(*HEADS_FIRST, scale=trained()), "scaled_dot_product_attention: scale: found a tensor that requires a gradient"),
    "a trained scale of a module": (lambda: foveal.torch.Attention(scale=trained()), "foveal.torch.Attention: scale: found a tensor that requires a gradient"),
    "a trained rate": (lambda: sdpa(*HEADS_FIRST, dropout_p=trained()), "scaled_dot_product_attention: dropout_p: found a tensor that requires a gradient"),
    "a class of one's own": (lambda: attention(twice(q), k, v), "foveal.torch.attention: q: a Twice, whose __torch_function__ is its own; expected a plain"),
    "captured": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + BIAS[i]), "foveal.torch.attention: a captured tensor: a Twice"),
    "as a sink": (lambda: attention(q, k, v, sink=twice(torch.zeros(2))), "foveal.torch.attention: a captured tensor: a Twice"),
    "in sdpa": (lambda: sdpa(HEADS_FIRST[0], twice(HEADS_FIRST[1]), HEADS_FIRST[2]), "scaled_dot_product_attention: key: a Twice"),
    "a mode of one's own": (lambda: within_a_mode(), "foveal.torch.attention: a score or mask within Doubled, a TorchFunctionMode"),
    "flex's other function": (lambda: flex(*HEADS_FIRST, block_mask=lambda s, b, h, i, j: s), "flex_attention: block_mask: found a function of .*is a score_mod"),
    "an integer of 71 bits": (lambda: foveal.attention(*ARRAYS, lambda s, b, h, i, j: s + (i < 2**70)), r"foveal.attention: .*an integer beyond 64 bits; expected one from -2\*\*63"),
    "what torch.compile made": (lambda: attention(q, k, v, lambda s, b, h, i, j: COMPILED(s)), r"foveal.torch.attention: a score or mask calls what torch.compile\(\) made"),
    "what torch.compile made of a tensor": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + COMPILED(torch.ones(5))[i]), r"a score or mask calls what torch.compile\(\) made"),
    "varlen's ends": (lambda: varlen(q[0], k[0], v[0], CU - CU, CU, 5, 5), "varlen_attn: cu_seq_q: ends with 0; expected the total 5"),
    "varlen's longest": (lambda: varlen(q[0], k[0], v[0], CU, CU, 5, 1), "varlen_attn: max_k: 1 is less than"),
    "a word for lse": (lambda: attention(q, k, v, return_lse="no"), "foveal.torch.attention: return_lse: found str 'no'; expected True or False"),
    "a word for lse of flex": (lambda: flex(*HEADS_FIRST, return_lse="no"), "foveal.torch.flex_attention: return_lse: found str 'no'"),
    "a word for lse of a module": (lambda: foveal.torch.Attention()(q, k, v, return_lse="no"), "foveal.torch.Attention: return_lse: found str 'no'"),
    "a word for lse of arrays": (lambda: foveal.attention(*ARRAYS, return_lse="no"), "foveal.attention: return_lse: found str 'no'"),
    "a module's call": (lambda: foveal.torch.Attention()(q, k, v, is_causl=True), "foveal.torch.Attention: is_causl: no argument of this function; expected q, k"),
    "an offset": (lambda: attention(q, k, v, q_offset=2**70), "foveal.torch.attention: q_offset: found 1180591620717411303424; expected an integer of 64 bits"),
    "complex": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + COMPLEX[i]), "foveal.torch.attention: a captured array: dtype complex64"),
    "a matrix": (lambda: foveal.attention(*ARRAYS, lambda s, b, h, i, j: s + MATRIX[i, j]), "foveal.attention: a captured array: a matrix, which may read as"),
    "too many": (lambda: varlen(q[0], k[0], v[0], CU, CU, 5, 5, None), "foveal.torch.varlen_attn: too many positional arguments; expected query, .*max_k, and others by"),
    "one twice": (lambda: attention(q, k, v, q=q), "foveal.torch.attention: multiple values for argument 'q'"),
    "too few": (lambda: sdpa(q, k), r"foveal.torch.scaled_dot_product_attention: .*missing 1 required positional argument: 'value'"),
    "a transform within": (lambda: attention(q, k, v, lambda s, b, h, i, j: torch.vmap(lambda x: x * s)(MASK_BIAS).sum()), "foveal.torch.attention: torch.mul in a score or mask, within a transform of torch.func"),
    "an index within a transform": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + torch.vmap(lambda x: x[i])(MASK_BIAS[None])[0]), "foveal.torch.attention: .*within a transform of torch.func"),
    "a derivative of a symbol": (lambda: attention(q, k, v, lambda s, b, h, i, j: torch.func.grad(torch.sin)(s)), r"foveal.torch.attention: a score or mask hands a symbol to _wrap_for_grad\(\), which takes tensors alone"),
    "a checkpoint of a symbol": (lambda: attention(q, k, v, lambda s, b, h, i, j: checkpoint(torch.sin, s, use_reentrant=False)), "foveal.torch.attention: a score or mask hands a symbol to"),
    "a state of another shape": (lambda: attention(q, k, v, dropout_p=0.5, rng_state=torch.zeros(3, dtype=torch.int64)), "foveal.torch.attention: rng_state: i64.3. with strides .1.; expected i64.2."),
    "a state and a seed": (lambda: attention(q, k, v, dropout_p=0.5, seed=1, rng_state=STATE), "foveal.torch.attention: rng_state: found beside a seed or an offset"),
    "a state and an offset": (lambda: foveal.torch.Attention(dropout_p=0.5)(q, k, v, offset=1, rng_state=STATE), "foveal.torch.Attention: rng_state: found beside a seed or an offset"),
    "a state and a seed, arrays": (lambda: foveal.attention(*ARRAYS, dropout_p=0.5, seed=0, rng_state=STATE.numpy()), "foveal.attention: rng_state: found beside a seed or an offset"),
    "an array as a mask": (lambda: attention(q, k, v, mask=torch.ones(5, 5) > 0), r"foveal.torch.attention: mask: found Tensor; expected a function, .*: lambda b, h, i, j: x\[b, h, i, j\]"),
    "an array as a score": (lambda: foveal.attention(*ARRAYS, TABLE), r"foveal.attention: score_mod: found ndarray; expected a function, .*: lambda s, b, h, i, j: s \+ x\["),
    "a number as a name": (lambda: attention(q, k, v, params={1: torch.ones(5)}), "foveal.torch.attention: params: found int 1 as a name; expected text"),
    "words for longest": (lambda: attention(q[0], k[0], v[0], cu_seqlens=(CU, CU), max_seqlens=("a", 5)), r"foveal.torch.attention: max_seqlens: found \('a', 5\); expected a pair"),
    "words for threads": (lambda: attention(q, k, v, options=foveal.Options(threads="a")), "foveal.torch.attention: options.threads: found str 'a'; expected an integer"),
    "a door within": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + attention(q, k, v, lambda s, *_: 2 * s)[0, i, 0, 0]), "foveal.torch.attention: a score or mask calls foveal.torch itself"),
    **{
        f"a module's {name}": (lambda name=name: foveal.torch.Attention(f"score + {name}[head]", params={name: torch.ones(2)}), f"foveal.torch.Attention: params: '{name}' is an attribute")
        for name in ("forward", "training", "names", "key", "_sink", "_parameters")
    },
    "a nested mask": (lambda: sdpa(*HEADS_FIRST, NESTED), "scaled_dot_product_attention: attn_mask: found a nested tensor; expected a dense one"),
    "a nested capture": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + NESTED[h, i]), "foveal.torch.attention: a captured array: a nested tensor; expected a plain"),
    "a sparse mask": (lambda: sdpa(*HEADS_FIRST, torch.ones(5, 5).to_sparse()), "scaled_dot_product_attention: attn_mask: found a tensor of layout torch.sparse_coo"),
    "a block below 0": (lambda: flex(*HEADS_FIRST, block_mask=BELOW), "flex_attention: block_mask: kv_indices lists block -1; expected 0 to 0"),
    "a list in a plan": (lambda: planned(q=[1.0]), "foveal.Plan.run: q: found list; expected an array of NumPy"),
    "a real seed of a plan": (lambda: planned(seed=1.5), "foveal.Plan.run: seed: found float 1.5; expected an integer from 0"),
    "a negative seed of a plan": (lambda: planned(seed=-1), "foveal.Plan.run: seed: found int -1; expected an integer from 0"),
    "gradients of a forward plan": (lambda: planned(gradients={"p0": TABLE}), "foveal.Plan.run: gradients: given for a forward pass; expected a plan with"),
    "a forward plan with gradients": (lambda: foveal.plan(*ARRAYS, gradients=("p0",)), r"foveal.plan: gradients: found \('p0',\) for a forward pass; expected backward"),
    "a forward plan with dlse": (lambda: foveal.plan(*ARRAYS, dlse=True), "foveal.plan: dlse: found True for a forward pass; expected backward=True"),
    "a plan's flag": (lambda: foveal.explain(*ARRAYS, backward="yes"), "foveal.explain: backward: found str 'yes'; expected True or False"),
    "one name for gradients": (lambda: backward(gradients="p0"), r"foveal.backward: gradients: found str 'p0'; expected a tuple of names, as in gradients=\('p0',\)"),
    "no gradients": (lambda: backward(gradients=None), "foveal.backward: gradients: found NoneType None; expected a tuple of names"),
    "no out": (lambda: backward(out=None), "foveal.backward: out: found NoneType; expected an array of numpy, as q is"),
    "no dout": (lambda: backward(dout=None), "foveal.backward: dout: found NoneType; expected an array of numpy, as q is"),
    "a number for dlse": (lambda: backward(dlse=1.0), "foveal.backward: dlse: found float; expected an array of numpy, as q is"),
    "check's dout": (lambda: foveal.check(*ARRAYS, dout=ARRAYS[0][:, :2]), r"foveal.check: dout: shape \[1, 2, 2, 8\]; expected \[1, 5, 2, 8\]"),
    "check's dlse": (lambda: foveal.check(*ARRAYS, dout=ARRAYS[0], dlse=TABLE), r"foveal.check: dlse: shape \[5\]; expected \[1, 2, 5\]"),
    "check's dlse alone": (lambda: foveal.check(*ARRAYS, dlse=np.ones((1, 2, 5), np.float32)), "foveal.check: dlse: given for a forward pass; expected dout beside it"),
    "check's gradients alone": (lambda: foveal.check(*ARRAYS, gradients=("p0",)), "foveal.check: gradients: given for a forward pass; expected dout beside it"),
    "check's lengths": (lambda: foveal.check(*[a[0] for a in ARRAYS], cu_seqlens=(CU.cpu().numpy() + 1,) * 2), r"foveal.check: cu_seqlens_q: found \[1, 6\]; expected 0, then"),
    "check's pages": (lambda: paged(foveal.check, [20, 99]), "foveal.check: seqlens_kv: 99 of sequence 1; expected 0 to 32, what a row"),
    "check's negative length": (lambda: paged(foveal.check, [-5, 3]), "foveal.check: seqlens_kv: -5 of sequence 0; expected 0 to 32"),
    "three lengths": (lambda: packed(max_seqlens=(5, 5, 5)), r"foveal.attention: max_seqlens: found \(5, 5, 5\); expected a pair of integers"),
    "lengths of reals": (lambda: packed(max_seqlens=(5.0, 5.0)), r"foveal.attention: max_seqlens: found \(5.0, 5.0\); expected a pair of integers"),
    "a length for a batch": (lambda: foveal.attention(*ARRAYS, max_seqlens=5), "foveal.attention: max_seqlens: found 5; expected a pair of integers"),
    "a strategy": (lambda: foveal.attention(*ARRAYS, strategy=None), "foveal.attention: strategy: found None; expected automatic, fused, split"),
    "threads": (lambda: foveal.attention(*ARRAYS, options=foveal.Options(threads="a")), "foveal.attention: options.threads: found str 'a'; expected an integer"),
    "a number as backend": (lambda: foveal.attention(*ARRAYS, options=foveal.Options(backend=3)), "foveal.attention: options.backend: found int 3; expected text"),
    "a list of backends": (lambda: attention(q, k, v, options=foveal.Options(exclude=["cpu"])), r"foveal.torch.attention: options.exclude: found list \['cpu'\]; expected text"),
    "a mask beside a line": (lambda: foveal.check("forward f32 q4", mask=foveal.causal()), "foveal.check: mask: given beside a problem line"),
    "options beside a line": (lambda: foveal.check("forward f32 q4", options=foveal.Options("cpu")), "foveal.check: options: given beside a problem line"),
    "a number for a name": (lambda: foveal.attention(*ARRAYS, params={1: TABLE}), "foveal.attention: params: found int 1 as a name; expected text"),
    "a scale that no float holds": (lambda: foveal.attention(*ARRAYS, scale=10**400), "foveal.attention: scale: found int 1000.*; expected a number that a float holds"),
    "a scale in letters": (lambda: foveal.attention(*ARRAYS, scale=np.array("x")), "foveal.attention: scale: found numpy array of <U1.*; expected a number"),
    "a text with another letter": (lambda: foveal.attention(*ARRAYS, "score + \u03c0"), r"foveal.attention: score_mod: expression: column 9: found '\\u03c0'; expected ASCII"),
    "a problem line with another letter": (lambda: foveal.check('forward f32 q4 score="\u03c0"'), r"foveal.check: problem line: column 23: found '\\u03c0'; expected ASCII"),
    "half of a letter": (lambda: foveal.attention(*ARRAYS, None, "q_idx \ud800"), r"foveal.attention: mask: expression: column 7: found '\\ud800'; expected ASCII"),
    "a text that is no mask": (lambda: foveal.attention(*ARRAYS, "score", "kv_idx <= qidx"), "foveal.attention: mask: expression: line 1, column 11: unknown name"),
    "a text that is no score": (lambda: foveal.attention(*ARRAYS, "score +", "kv_idx <= q_idx"), "foveal.attention: score_mod: expression: line 1"),
    "an error with more than a message": (lambda: foveal.attention(*ARRAYS, lambda s, b, h, i, j: s + float(b"\xff".decode())), "foveal.attention: 'utf-8' codec can't decode"),
    "a cap": (lambda: foveal.softcap("x"), "softcap: cap: found str 'x'; expected a number"),
    "caps": (lambda: foveal.softcap(TABLE), r"softcap: cap: found an array of float64\[5\]; expected a number; a score of your own may read an array"),
    "heads of ALiBi": (lambda: foveal.alibi(1.5), "alibi: heads: found float 1.5; expected an integer"),
    "a dilation": (lambda: foveal.dilated(3, "x"), "dilated: d: found str 'x'; expected an integer"),
    "a large window": (lambda: foveal.window(2**63), "window: w: found 9223372036854775808; expected an integer of 64 bits"),
    "half a window": (lambda: foveal.global_tokens(1.5, np.arange(5)), "global_tokens: w: found float 1.5; expected an integer"),
    "ids without sign": (lambda: foveal.document(np.arange(5, dtype=np.uint32)), "document: ids: dtype uint32 is not supported"),
    "torch.fx's stand-ins": (lambda: torch.fx.symbolic_trace(Attending()), "foveal.torch.scaled_dot_product_attention: query: found Proxy; expected a torch.Tensor"),
    "a list with symbols": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + [1.0, 2.0][h]), "score_mod|symbol|no value"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_explained(name):
    call, words = WRONG[name]
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=words) as caught:
        call()
    assert "describe()" not in str(caught.value) and "incompatible function arguments" not in str(caught.value)


def test_views_that_negate_are_read_as_they_are():
    """The imaginary part of a conjugated tensor: its memory holds the negative."""
    turned = [torch.randn(1, 5, 2, 8, dtype=torch.complex64).conj().imag.requires_grad_() for _ in range(3)]
    assert all(t.is_neg() for t in turned)
    plain = [t.detach().resolve_neg().clone().requires_grad_() for t in turned]
    for door in (attention, lambda q, k, v: sdpa(*[t.transpose(1, 2) for t in (q, k, v)]), lambda q, k, v: flex(*[t.transpose(1, 2) for t in (q, k, v)]), foveal.torch.Attention()):
        found, expected = door(*turned), door(*plain)
        torch.testing.assert_close(found, expected)
        for a, b in zip(torch.autograd.grad(found.sin().sum(), turned), torch.autograd.grad(expected.sin().sum(), plain)):
            torch.testing.assert_close(a.resolve_neg(), b)
    with pytest.raises(ValueError, match="foveal.forward: q: a view that negates"):
        foveal.forward(*[t.detach() for t in turned])


def test_parameters_that_negate_are_read_as_they_are():
    """Also where a program of tensors that look the same is known already."""
    turned = torch.randn(5, 5, dtype=torch.complex64).conj().imag.requires_grad_()
    plain = turned.detach().resolve_neg().clone().requires_grad_()
    for door in (
        lambda b: sdpa(*HEADS_FIRST, b),
        lambda b: attention(q, k, v, "score + b[q_idx, kv_idx]", params={"b": b}),
        lambda b: torch.func.functional_call(MODULE, {"b": b}, (q, k, v)),
    ):
        expected, found = door(plain), door(turned)
        torch.testing.assert_close(found, expected)
        for a, b in zip(torch.autograd.grad(found.sin().sum(), turned), torch.autograd.grad(expected.sin().sum(), plain)):
            torch.testing.assert_close(a.resolve_neg(), b)
    bias = {"b": plain.detach()}
    foveal.forward(q, k, v, "score + b[q_idx, kv_idx]", params=bias)
    with pytest.raises(ValueError, match="foveal.forward: b: a view that negates"):
        foveal.forward(q, k, v, "score + b[q_idx, kv_idx]", params={"b": turned.detach()})
    plan = foveal.plan(q, k, v, "score + b[q_idx, kv_idx]", params=bias)
    out, lse = torch.empty_like(q), torch.empty(1, 2, 5)
    plan.run(q=q, k=k, v=v, out=out, lse=lse)
    with pytest.raises(ValueError, match="b: a view that negates"):
        plan.run(q=q, k=k, v=v, out=out, lse=lse, params={"b": turned.detach()})
    with pytest.raises(ValueError, match="q: a view that negates"):
        plan.run(q=torch.randn(1, 5, 2, 8, dtype=torch.complex64).conj().imag, k=k, v=v, out=out, lse=lse)


MODULE = foveal.torch.Attention("score + b[q_idx, kv_idx]", params={"b": torch.nn.Parameter(torch.zeros(5, 5))})


def test_a_users_own_error_keeps_its_type_and_cause():
    def fn(s, b, h, i, j):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="foveal.torch.attention: mine") as caught:
        attention(q, k, v, fn)
    assert str(caught.value.__cause__) == "mine"


def test_integers_that_torch_does_not_hold():
    with pytest.raises(OverflowError, match="foveal.torch.attention: torch.lt in a score or mask: "):
        attention(q, k, v, lambda s, b, h, i, j: s + (i < 2**70))


CONSTANT = np.zeros((1, 5, 2, 4), dtype=np.float32)


@pytest.mark.parametrize("score", [lambda s, b, h, i, j: s * 1j, lambda s, b, h, i, j: s + divmod(i, 3)[0], lambda s, b, h, i, j: round(s)])
def test_pythons_own_words_name_the_function(score):
    with pytest.raises(TypeError, match="foveal.attention: score_mod: .*expected numbers of bool, int or float"):
        foveal.attention(CONSTANT, CONSTANT, CONSTANT, score)


def test_functions_of_numpys_that_are_methods_of_objects():
    with pytest.raises(TypeError, match="foveal.attention: numpy.arctan2: not a function of score expressions"):
        foveal.attention(CONSTANT, CONSTANT, CONSTANT, lambda s, b, h, i, j: s + np.arctan2(i, j))


def test_dtypes_that_are_listed_are_taken():
    with pytest.raises(ValueError, match="cu_seqlens_q: dtype uint32 is not supported; expected one of int64, int32$"):
        foveal.attention(*[CONSTANT[0]] * 3, cu_seqlens=(np.array([0, 5], dtype=np.uint32),) * 2)
    of_pairs = np.zeros(5, dtype=np.complex64)
    with pytest.raises(ValueError, match="complex64 is not supported; expected one of .*uint8, bool, uint16, uint32$"):
        foveal.attention(*[CONSTANT] * 3, lambda s, b, h, i, j: s + of_pairs[i])


@pytest.mark.parametrize("function", ["run", "bind"])
def test_errors_of_a_plans_runs_name_it(function):
    plan = foveal.plan(CONSTANT, CONSTANT, CONSTANT)
    with pytest.raises(ValueError, match=f"^foveal.Plan.{function}: out: .*; the plan expects"):
        (getattr(plan, function)(q=CONSTANT, k=CONSTANT, v=CONSTANT, out=CONSTANT[:, :3].copy(), lse=None) or (lambda: None))()


def test_names_within_a_message_are_the_functions_own():
    x = torch.randn(5, 2, 4)
    with pytest.raises(ValueError, match="foveal.torch.varlen_attn: cu_seq_k: size 3; expected 2, cu_seq_q's"):
        foveal.torch.varlen_attn(x, x, x, torch.tensor([0, 5]), torch.tensor([0, 3, 5]), 5, 5)
