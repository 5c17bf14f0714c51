"""One attention of tensors: by which way it runs, of all that torch has."""

from __future__ import annotations

from typing import Any, Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function

from ..describe import Rng
from ..signatures import Paged
from . import composite, sharded
from .eager import record, record_for_transforms
from .operators import forward_op, lse_shape, run_forward, signed_seeds, wide
from .programs import Found, key_of, program_of

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


def call(
    found: Found, params: list[Tensor], q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Any = None, max_seqlens: Any = (0, 0), rng: Rng = Rng()
) -> tuple[Tensor, Tensor]:
    params = _reached(found, params)
    if not (q.numel() and k.numel() and v.numel()) and (0 in q.shape[:-1] or 0 in k.shape[:-1] or 0 in v.shape):
        if context is not None:
            context.agree_on_nothing()
        return _nothing(found, q, k, v, params)
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
        of_q, of_kv = cu_seqlens or (None, None)
        cu_kv, block_table = (of_kv.seqlens_kv, of_kv.block_table) if isinstance(of_kv, Paged) else (of_kv, None)
        seen: tuple[Tensor, Tensor] = forward_op(q, k, v, params, of_q, cu_kv, block_table, *max_seqlens, *signed_seeds(rng), rng.state, key_of(found))
        return seen
    run = (*(cu_seqlens or (None, None)), *max_seqlens, *rng)
    made = program_of(found)
    if below or composite.in_forward_mode(tensors):  # torch's operations are seen, and have every derivative
        by_operations: tuple[Tensor, Tensor] = composite.attend(made, q, k, v, params, run)
        return by_operations
    if transformed:
        return record_for_transforms(made, run, q, k, v, *params)
    if trained and torch.is_grad_enabled():
        return record(made, run, q, k, v, *params)
    return run_forward(made, q, k, v, params, True, *run)


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


def _nothing(found: Found, q: Tensor, k: Tensor, v: Tensor, params: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What tensors without elements give: zeros, with gradients of zero; lse is -inf, the sink where there is one."""
    connected = sum([t[..., :0].sum() for t in (q, k, v, *params) if t.is_floating_point()])
    heads_first, sink = _order_and_sink(found)
    shape = lse_shape(q, heads_first)
    out = q.new_zeros((*q.shape[:-1], v.shape[-1])) + connected
    at_head = q.new_full((shape[-2],), -torch.inf, dtype=wide(q.dtype))
    if sink is not None:
        at_head = params[sink].to(at_head.dtype)
    lse = at_head.reshape(-1, 1).expand(shape) + connected
    return out.to(q.dtype), lse.to(at_head.dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _order_and_sink(found: Found) -> tuple[bool, int | None]:
    """Whether heads come before the sequence, and which parameter is the sink."""
    program = program_of(found)
    sink = program.attention.sink
    return program.heads_first, None if sink is None else [param.name for param in program.params].index(sink.name)


def draw_rng(device: torch.device) -> Rng:
    """Of one call's dropout, from torch's generator of the device: torch.manual_seed makes it repeatable, checkpointing restores it."""
    state = torch.randint(0, 2**62, (2,), dtype=torch.int64, device=device)
    return Rng(state=state if context is None else context.agreed(state))


def whole_seqlens(seqlen_q: int, seqlen_kv: int) -> tuple[int, int]:
    """Of the whole tensors, where these are shards."""
    return (seqlen_q, seqlen_kv) if context is None else context.whole_seqlens(seqlen_q, seqlen_kv)
