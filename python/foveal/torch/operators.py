"""How torch sees a program: operators for torch.compile and torch.export, and an autograd.Function for eager code."""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function

from .. import argument_errors
from .._core import Expr, Program
from ..describe import Bound, Rng, program, trace
from ..signatures import Mask, Options, Paged, ScoreMod, length_slots
from . import composite, examples, sharded
from .tracing import TorchTracer

# The operators. torch.compile and torch.export see these; eager code takes the autograd.Function below, which calls the same program.
# Tensors first, then `key`, which names the program. seed and offset are the bits of unsigned numbers. Beside a block_table, cu_kv is seqlens_kv.


def _of_kv(cu_kv: Tensor | None, block_table: Tensor | None) -> Any:
    return cu_kv if block_table is None else Paged(block_table, cu_kv)


def as_rows(dout: Tensor) -> Tensor:
    """The gradient of a sum is one number with strides of 0, which Hopper's copy engine does not load: a copy costs less than the portable kernels."""
    dout = dout.resolve_neg()
    return dout.contiguous() if dout.is_cuda and dout.stride(-1) != 1 else dout


argument_errors.is_compiling = torch.compiler.is_compiling

_runs = [0]  # of the forward operator


def compiled_runs() -> int:
    """How often the forward operator ran: in code that torch.compile made, or under a transform of torch.func."""
    return _runs[0]


# Not as bound methods: where torch.compile leaves a graph within this file, it loses what they are bound to.
_forward, _backward = Program.forward, Program.backward


def _check_level() -> None:
    """Code that torch.compile made before the level was entered has no guard on it."""
    if forward_ad._current_level >= 0:
        raise NotImplementedError(
            "foveal: compiled or exported code runs within forward_ad.dual_level(), and would lose tangents; expected the call outside of "
            "torch.compile, or torch.func.jvp()"
        )


@torch.library.custom_op("foveal::forward", mutates_args=())
def _forward_op(
    q: Tensor, k: Tensor, v: Tensor, params: list[Tensor], cu_q: Tensor | None, cu_kv: Tensor | None, block_table: Tensor | None,
    max_q: int, max_kv: int, seed: int, offset: int, rng_state: Tensor | None, key: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _runs[0] += 1
    _check_level()
    q, k, v, *params = [t.resolve_neg() for t in (q, k, v, *params)]
    of_kv = _of_kv(cu_kv, block_table)
    return _forward(program(key), q, k, v, params, True, cu_q, of_kv, max_q, max_kv, seed % 2**64, offset % 2**64, rng_state)


@torch.library.custom_op("foveal::backward", mutates_args=())
def _backward_op(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None, params: list[Tensor], cu_q: Tensor | None,
    cu_kv: Tensor | None, block_table: Tensor | None, max_q: int, max_kv: int, seed: int, offset: int, rng_state: Tensor | None, key: str,
    want: list[bool],
) -> list[Tensor]:  # fmt: skip
    _check_level()
    rng = seed % 2**64, offset % 2**64, rng_state
    q, k, v, *params = [t.resolve_neg() for t in (q, k, v, *params)]
    of_kv = _of_kv(cu_kv, block_table)
    found = _backward(program(key), q, k, v, out, lse, as_rows(dout), dlse, params, want, cu_q, of_kv, max_q, max_kv, *rng, True)
    return [gradient for gradient in found if gradient is not None]


@_forward_op.register_fake
def _(
    q: Any, k: Any, v: Any, params: Any, cu_q: Any, cu_kv: Any, block_table: Any, max_q: Any, max_kv: Any, seed: Any,
    offset: Any, rng_state: Any, key: Any,
) -> Any:  # fmt: skip
    heads_first = program(key).heads_first
    if q.dim() == 3:
        lse = q.shape[1], q.shape[0]
    else:
        lse = (q.shape[0], *(q.shape[1:3] if heads_first else (q.shape[2], q.shape[1])))
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _new(q, (*q.shape[:-1], v.shape[-1]), heads_first), q.new_empty(lse, dtype=dtype)


@_backward_op.register_fake
def _(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, dlse: Any, params: Any, cu_q: Any, cu_kv: Any, block_table: Any,
    max_q: Any, max_kv: Any, seed: Any, offset: Any, rng_state: Any, key: Any, want: Any,
) -> Any:  # fmt: skip
    heads_first = program(key).heads_first
    gradients = [_new(t, t.shape, heads_first) for t in (q, k, v)] + [_new(t, t.shape, False) for t in params]
    return [gradient for gradient, wanted in zip(gradients, want) if wanted]


def _new(like: Tensor, shape: Any, heads_first: bool) -> Tensor:
    """As programs make their results: heads first, in the order in memory of the tensor that they are like, as torch's functions do."""
    if not heads_first:
        return like.new_empty(shape)
    *strides, last = like.stride()
    dims = [0, 1, 2]
    # Where elements repeat, or head_dim does not come last in memory: contiguous.
    if (last == 1 or like.shape[3] <= 1) and all([stride > 0 or extent <= 1 for stride, extent in zip(strides, like.shape)]):
        dims.sort(key=lambda d: strides[d], reverse=True)
    return like.new_empty([shape[d] for d in (*dims, 3)]).permute([*[dims.index(d) for d in range(3)], 3])


def _op_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, params, cu_q, cu_kv, block_table, max_q, max_kv, seed, offset, rng_state, key = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse, cu_q, cu_kv, block_table, rng_state, *params)
    ctx.lengths, ctx.seeds, ctx.key = (max_q, max_kv), (seed, offset), key
    ctx.want = [t.requires_grad for t in (q, k, v, *params)]


def _op_backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse, cu_q, cu_kv, block_table, rng_state, *params = ctx.saved_tensors
    dout = torch.zeros_like(out) if dout is None else dout
    run = cu_q, cu_kv, block_table, *ctx.lengths, *ctx.seeds, rng_state
    found = iter(_backward_op(q, k, v, out, lse, dout, dlse, params, *run, ctx.key, ctx.want))
    gradients = [next(found) if wanted else None for wanted in ctx.want]
    return (*gradients[:3], gradients[3:], *(None,) * 9)


_forward_op.register_autograd(_op_backward, setup_context=_op_setup)


def _tensors_of(run: Any) -> list[Tensor]:
    """Of the arguments of a run: saved for the backward pass as q is, so that torch notices when they were changed meanwhile."""
    of_q, of_kv, _, _, _, _, state = run
    if of_q is None and of_kv is None and state is None:
        return []
    return [t for t in (*length_slots(of_q, of_kv), state) if t is not None]


def _with_tensors(run: Any, saved: list[Tensor]) -> Any:
    """The run with its tensors as they were saved."""
    if not saved:
        return run
    of_q, of_kv, *numbers, state = run
    found = iter(saved)
    cu_q, cu_kv, block_table, seqlens_kv, state = [None if t is None else next(found) for t in (*length_slots(of_q, of_kv), state)]
    return (cu_q, Paged(block_table, seqlens_kv) if isinstance(of_kv, Paged) else cu_kv, *numbers, state)


class _Attention(torch.autograd.Function):
    """The eager path: the operators' bodies without the dispatcher. run: cu_seqlens of q and kv, max_seqlens of both,
    seed, offset and state of dropout."""

    @staticmethod
    def forward(program: Any, run: Any, q: Any, k: Any, v: Any, *params: Any) -> Any:
        return _forward(program, q, k, v, params, True, *(*run, True))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.program, ctx.run, q, k, v, *params = inputs
        ctx.save_for_backward(q, k, v, *output, *params, *_tensors_of(ctx.run))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        if examples.are_disguised((dout, dlse)):
            return examples.run_disguised(functools.partial(_Attention.backward, ctx), (dout, dlse))
        q, k, v, out, lse, *rest = ctx.saved_tensors
        want = ctx.needs_input_grad[2:]
        params, run = rest[: len(want) - 3], _with_tensors(ctx.run, rest[len(want) - 3 :])
        if dout is None:
            if dlse is None:
                return (None,) * (2 + len(want))
            dout = torch.zeros_like(out)
        dout, dlse = as_rows(dout), None if dlse is None else dlse.resolve_neg()
        if torch.is_grad_enabled():  # create_graph=True: the gradients' own derivatives may be asked for
            given = ctx.program, run, want, out.detach(), lse.detach(), q, k, v, dout, dlse
            found = iter(_Gradients.apply(*given, *params))  # type: ignore[no-untyped-call]
            return (None, None, *[next(found) if wanted else None for wanted in want])
        return (None, None, *_backward(ctx.program, q, k, v, out, lse, dout, dlse, params, want, *(*run, True)))

    @staticmethod
    def vmap(info: Any, in_dims: Any, program: Any, run: Any, *tensors: Any) -> Any:
        return examples.run(_Attention, program, run, in_dims[1], (), info.batch_size, in_dims[2:], tensors, first_param=3)


class _Gradients(torch.autograd.Function):
    """The backward pass as a function of its own: the wanted gradients."""

    @staticmethod
    def forward(program: Any, run: Any, want: Any, out: Any, lse: Any, q: Any, k: Any, v: Any, dout: Any, dlse: Any, *params: Any) -> Any:
        found = _backward(program, q, k, v, out, lse, dout, dlse, params, want, *(*run, True))
        return tuple([gradient for gradient in found if gradient is not None])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.program, ctx.run, ctx.want, _, _, *tensors = inputs
        ctx.save_for_backward(*tensors, *_tensors_of(ctx.run))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        if examples.are_disguised(cotangents):
            return examples.run_disguised(functools.partial(_Gradients.backward, ctx), cotangents)
        q, k, v, dout, dlse, *rest = ctx.saved_tensors
        params, run = rest[: len(ctx.want) - 3], _with_tensors(ctx.run, rest[len(ctx.want) - 3 :])
        given = iter(cotangents)
        every = [next(given) if wanted else None for wanted in ctx.want]
        found = composite.second_derivatives(ctx.program, run, ctx.want, q, k, v, dout, dlse, params, every)
        return (None, None, None, None, None, *found)

    @staticmethod
    def vmap(info: Any, in_dims: Any, program: Any, run: Any, want: Any, *tensors: Any) -> Any:
        summed = any(want[3:])  # each example has a gradient of its own
        return examples.run(_Gradients, program, run, in_dims[1], (want,), info.batch_size, in_dims[3:], tensors, first_param=7, alone=summed)


_record: Callable[..., tuple[Tensor, Tensor]] = super(torch.autograd.Function, _Attention).apply  # without the wrapper that looks for functorch, which call() has done


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_heads_first(key: str) -> bool:
    return program(key).heads_first


context: Any = None  # what context_parallel() has entered: calls take and give local shards

# Looked up once: every call asks them.
_dispatch_modes, _tracing_state = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
_NO_DISPATCH = Tensor.__torch_dispatch__
_TENSORS_FUNCTION = getattr(Tensor.__torch_function__, "__func__")
_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def is_any_dispatching(tensors: Iterable[Tensor]) -> bool:
    """Whether one is of a class with a dispatch of its own."""
    for t in tensors:
        if type(t) not in _PLAIN and type(t).__torch_dispatch__ is not _NO_DISPATCH:
            return True
    return False


def _has_own_function(kind: Any) -> bool:
    function = kind.__torch_function__
    return function is not torch._C._disabled_torch_function_impl and getattr(function, "__func__", None) is not _TENSORS_FUNCTION


def _looks(tensors: Iterable[Tensor]) -> tuple[bool, bool, bool, bool]:
    """In one pass: whether one is a view that negates when it is read, of a class with a dispatch of its own, of one that results have, too, or to get a
    gradient. Refuses classes that give functions another meaning, which kernels would not see."""
    negated = dispatching = classed = trained = False
    for at, t in enumerate(tensors):
        if t.is_neg():
            negated = True
        if t.requires_grad:
            trained = True
        if type(t) not in _PLAIN:
            if _has_own_function(type(t)):
                what = "qkv"[at] if at < 3 else "a captured tensor"
                raise TypeError(f"attention: {what}: a {type(t).__name__}, whose __torch_function__ is its own; expected a plain tensor: t.as_subclass(torch.Tensor)")
            classed = True
            if type(t).__torch_dispatch__ is not _NO_DISPATCH:
                dispatching = True
    return negated, dispatching, classed, trained


def dtype_of(tensor: Tensor) -> torch.dtype:
    """In which q, k or v is computed: autocast's where that is on, which leaves doubles alone as torch's functions do."""
    kind = tensor.device.type
    cast = tensor.dtype in _CAST and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if cast else tensor.dtype


_CAST = (torch.float32, torch.bfloat16, torch.float16)


# How a public function names what it calls: in eager code the program itself; where torch.compile traces, its key, a constant.
Found = Program | str


def program_of(found: Found) -> Program:
    return program(found) if isinstance(found, str) else found


def key_of(found: Found) -> str:
    return found if isinstance(found, str) else found.key


def call(
    found: Found, params: list[Tensor], q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Any = None, max_seqlens: Any = (0, 0), rng: Rng = Rng()
) -> tuple[Tensor, Tensor]:
    params = _reached(found, params)
    if not (q.numel() and k.numel() and v.numel()) and (0 in q.shape[:-1] or 0 in k.shape[:-1] or 0 in v.shape):
        if context is not None:
            context.agree_on_nothing()
        return _nothing(program_of(found), q, k, v, params)
    kind = "cpu" if q.is_cpu else q.device.type
    if torch.is_autocast_enabled(kind):
        q, k, v = [t.to(dtype_of(t)) for t in (q, k, v)]
    compiling = torch.compiler.is_compiling()
    tensors = (q, k, v, *params)
    negated, dispatching, classed, trained = (False, is_any_dispatching(tensors), False, False) if compiling else _looks(tensors)
    if classed and has_torch_function(tensors):  # the results of torch's functions are of their operands' class
        of_class: tuple[Tensor, Tensor] = handle_torch_function(call, tensors, found, params, q, k, v, cu_seqlens, max_seqlens, rng)
        return of_class
    if negated:
        q, k, v, *params = tensors = tuple([t.resolve_neg() for t in tensors])
    if dispatching and sharded.is_sharded(tensors):
        return sharded.attend(call, key_of(found), params, q, k, v, cu_seqlens is not None)
    if context is not None:
        of_shards: tuple[Tensor, Tensor] = context.attend(key_of(found), params, q, k, v, cu_seqlens, rng)
        return of_shards
    if compiling and _transformed_while_compiling():
        outside: tuple[Tensor, Tensor] = _call_outside(found, params, q, k, v, cu_seqlens, max_seqlens, rng)
        return outside
    transformed = not compiling and torch._C._are_functorch_transforms_active()
    # Whether something sees calls below torch's functions (make_fx, torch.jit.trace, fake tensors, FLOP counters, selective checkpointing, tensor
    # classes with a dispatch of their own): it sees operators only, and would take results that come by other ways for constants.
    below = not compiling and (dispatching or _dispatch_modes() > 0 or _tracing_state() is not None)
    if compiling or (below and not transformed and forward_ad._current_level < 0):
        seeds = [bits if bits < 2**63 else bits - 2**64 for bits in (rng.seed, rng.offset)]
        of_q, of_kv = cu_seqlens or (None, None)
        cu_kv, block_table = (of_kv.seqlens_kv, of_kv.block_table) if isinstance(of_kv, Paged) else (of_kv, None)
        seen: tuple[Tensor, Tensor] = _forward_op(q, k, v, params, of_q, cu_kv, block_table, *max_seqlens, *seeds, rng.state, key_of(found))
        return seen
    run = (*(cu_seqlens or (None, None)), *max_seqlens, *rng)
    made = program_of(found)
    if below or composite.in_forward_mode(tensors):  # torch's operations are seen, and have every derivative
        by_operations: tuple[Tensor, Tensor] = composite.attend(made, q, k, v, params, run)
        return by_operations
    if transformed:
        recorded: tuple[Tensor, Tensor] = _Attention.apply(made, run, q, k, v, *params)  # type: ignore[no-untyped-call]
        return recorded
    if trained and torch.is_grad_enabled():
        return _record(made, run, q, k, v, *params)
    return _forward(made, q, k, v, params, True, *run)


def _reached(found: Found, params: list[Tensor]) -> list[Tensor]:
    """What no derivative leads to, such as what the mask reads, gets no gradient, as in torch."""
    if not any([t.requires_grad for t in params]):
        return params
    constants = _constants(found)
    return [t.detach() if at in constants else t for at, t in enumerate(params)] if constants else params


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constants(found: Found) -> tuple[int, ...]:
    return tuple(program_of(found).constants)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _transformed_while_compiling() -> bool:
    """Within a transform of torch.func or a dual level, which torch.compile guards: operators would lose tangents without a word."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _call_outside(*given: Any) -> tuple[Tensor, Tensor]:
    """A graph break."""
    return call(*given)


def _nothing(program: Any, q: Tensor, k: Tensor, v: Tensor, params: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What tensors without elements give: zeros, with gradients of zero; lse is -inf, the sink where there is one."""
    connected = sum([t[..., :0].sum() for t in (q, k, v, *params) if t.is_floating_point()])
    lead, heads = tuple(q.shape[:-2]), q.shape[-2]  # [batch, seqlen] or packed [total]
    if program.heads_first and q.dim() == 4:
        lead, heads = (q.shape[0], q.shape[2]), q.shape[1]
    out = q.new_zeros((*q.shape[:-1], v.shape[-1])) + connected
    sink = program.attention.sink
    at_head = q.new_full((heads,), -torch.inf, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
    if sink is not None:
        at_head = params[[param.name for param in program.params].index(sink.name)].to(at_head.dtype)
    lse = at_head.reshape(heads, 1).expand(*lead[:-1], heads, lead[-1]) + connected
    return out.to(q.dtype), lse.to(at_head.dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constant_key(score_mod: Expr | str | None, mask: Expr | str | None, looks: tuple[Any, ...], heads_first: bool, rest: tuple[Any, ...]) -> str:
    """For torch.compile, which calls this while it traces: all arguments are constants. looks: of the tensors given by name."""
    given = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape, dtype in looks}
    arguments = {**dict(rest), "sink": given.pop("sink", None), "params": given}
    return trace(score_mod, mask, Options(), arguments, TorchTracer, heads_first).program.key


def draw_rng(device: torch.device) -> Rng:
    """Of one call's dropout, from torch's generator of the device: torch.manual_seed makes it repeatable, checkpointing restores it."""
    state = torch.randint(0, 2**62, (2,), dtype=torch.int64, device=device)
    return Rng(state=state if context is None else context.agreed(state))


def whole_seqlens(seqlen_q: int, seqlen_kv: int) -> tuple[int, int]:
    """Of the whole tensors, where these are shards."""
    return (seqlen_q, seqlen_kv) if context is None else context.whole_seqlens(seqlen_q, seqlen_kv)


def _trace_like(
    score_mod: ScoreMod, mask: Mask, options: Options, arguments: dict[str, Any], heads_first: bool, like: Tensor | None
) -> Bound:
    tracer = TorchTracer.like(like.device, like.dtype) if isinstance(like, Tensor) else TorchTracer
    return trace(score_mod, mask, options, arguments, tracer, heads_first)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _key_outside(*traced: Any) -> tuple[str, list[Tensor]]:
    """Functions are run on symbols: a graph break."""
    found = _trace_like(*traced)
    return found.program.key, found.arrays


# torch.compile takes objects like Expr for constants from 2.13 on (not yet in 2.11); before, they cost a graph break too.
_CONSTANT = (Expr, str, type(None)) if torch.torch_version.TorchVersion(torch.__version__) >= "2.13" else (str, type(None))


def _of_this_call(value: Any) -> Any:
    """A program holds its numbers, and the sizes of what it reads: of one that torch.compile keeps open, this call's, and others compile anew."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(value) if isinstance(value, (int, float)) else value


def bound(
    score_mod: ScoreMod, mask: Mask, options: Options, arguments: dict[str, Any], heads_first: bool, like: Tensor | None = None
) -> tuple[Found, list[Tensor]]:
    """For q like this one: the program, and the tensors that are its parameters."""
    if torch.compiler.is_compiling():
        if isinstance(score_mod, _CONSTANT) and isinstance(mask, _CONSTANT) and options == Options():
            given = {**(arguments.get("params") or {}), **({} if arguments.get("sink") is None else {"sink": arguments["sink"]})}
            looks = tuple([(name, tuple([_of_this_call(extent) for extent in t.shape]), t.dtype) for name, t in given.items()])
            rest = tuple([(name, _of_this_call(value)) for name, value in arguments.items() if name not in ("params", "sink")])
            return _constant_key(score_mod, mask, looks, heads_first, rest), list(given.values())
        outside: tuple[str, list[Tensor]] = _key_outside(score_mod, mask, options, arguments, heads_first, like)
        return outside
    found = _trace_like(score_mod, mask, options, arguments, heads_first, like)
    return found.program, found.arrays
