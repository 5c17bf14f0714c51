"""foveal as an attention implementation of transformers:

    foveal.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="foveal")

Softcaps, sinks, windows, chunks, position biases, padding, packed sequences, grouped heads, dropout, caches: each becomes part of the score or the
mask of one fused call. Masks are expressions: no seqlen_q x seqlen_kv tensor is made, and empty tiles are skipped.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._pytree import tree_map
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, eager_mask, prepare_padding_mask, sdpa_mask
from transformers.utils import output_capturing

from . import _core, logging, transformers_alibi
from ._core import Expr
from .describe import Rng, describe
from .signatures import Options
from .torch import calls
from .torch.calls import call, draw_rng
from .torch.programs import bound
from .torch.tracing import TorchTracer


def register(name: str = "foveal") -> None:
    """Makes `name` an attn_implementation of transformers: for from_pretrained, from_config and set_attn_implementation."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    transformers_alibi.install(name, Mask, attention_forward)
    if not _names:
        setattr(PreTrainedModel, "post_init", _then_told(PreTrainedModel.post_init))
        setattr(PreTrainedModel, "get_correct_attn_implementation", _tables_noticed(PreTrainedModel.get_correct_attn_implementation))
    _names.add(name)


_names: set[str] = set()  # that are registered


def _then_told(method: Callable[..., Any]) -> Callable[..., Any]:
    """As a model is made: transformers refuses 'sdpa' where the model does not take it, but no name that it does not know."""

    @functools.wraps(method)
    def told(self: PreTrainedModel) -> Any:
        result = method(self)
        chosen = getattr(self.config, "_attn_implementation", None)
        if chosen in _names and not _takes_implementations(self):
            warnings.warn(
                f"{type(self).__name__}: attn_implementation={chosen!r} has no effect: this model computes attention in code of its own", UserWarning, stacklevel=3
            )
        return result

    return told


def _takes_implementations(model: PreTrainedModel) -> bool:
    """Or has no attention."""
    attentions = [type(module) for module in model.modules() if "Attention" in type(module).__name__]
    known = getattr(model.config, "model_type", None) in transformers_alibi.MODEL_TYPES
    return known or not attentions or any([_has_interface(kind.__module__) for kind in attentions])


def _tables_noticed(method: Callable[..., Any]) -> Callable[..., Any]:
    """As an implementation is chosen, before layers are made: some models take the class of their attention from a table, which would raise KeyError."""

    @functools.wraps(method)
    def noticed(self: PreTrainedModel, requested: str | None, is_init_check: bool = False) -> Any:
        for kinds in _tables_of(self) if requested in _names else ():
            if isinstance(kinds.get(requested), type):  # register() has put it there
                continue
            if is_init_check:
                kinds[requested] = _Refusal(requested, type(self).__name__, kinds)
            else:
                _tell_of_chosen(self, requested, kinds)
        return method(self, requested, is_init_check)

    return noticed


def _tables_of(model: PreTrainedModel) -> list[dict[Any, Any]]:
    """{implementation: class} in the model's own module."""
    values = list(vars(sys.modules[type(model).__module__]).values()) if type(model).__module__ in sys.modules else []
    return [value for value in values if isinstance(value, dict) and _is_layer(value.get("eager"))]


def _is_layer(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, torch.nn.Module)


def _tell_of_chosen(model: PreTrainedModel, requested: Any, kinds: dict[Any, Any]) -> None:
    for layer in model.modules():
        if type(layer) in kinds.values():
            what = f"attn_implementation={requested!r} has no effect on its {type(layer).__name__}, which was chosen when it was made"
            warnings.warn(f"{type(model).__name__}: {what}", UserWarning, stacklevel=4)
            return


class _Refusal:
    """In the place of a class in such a table."""

    def __init__(self, name: Any, model: str, kinds: dict[Any, Any]):
        self._words = (
            f"attn_implementation={name!r}: {model}: this model chooses its attention from a table of its own, which foveal is not in; "
            f"expected {' or '.join([repr(known) for known, kind in kinds.items() if _is_layer(kind)])}"
        )

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(self._words)


class Mask(BlockMask):
    """A mask as an expression with the tensors it reads. Models hand it from layer to layer, as they do FlexAttention's; it is a tensor, made by
    `materialize`, for one that computes with it."""

    def __init__(
        self, expr: Expr, params: dict[str, Tensor], shape: tuple[int, int, int, int], of_module: bool = False,
        materialize: Callable[[], Tensor] | None = None,
    ):  # fmt: skip
        self.expr, self.params, self._shape, self._of_module, self._materialize = expr, params, shape, of_module, materialize

    @property
    def shape(self) -> tuple[int, ...]:
        """[batch, 1, seqlen_q, seqlen_kv]."""
        return self._shape

    @property
    def ndim(self) -> int:
        return 0 if self._of_module else 4  # models that add ALiBi to masks of four dimensions leave this one alone

    def __repr__(self) -> str:
        return f"Mask({self.expr!r}, shape={self._shape})"

    __str__ = __repr__

    def to(self, where: torch.device | str | torch.dtype) -> "Mask":
        """On another device. Of another dtype: itself."""
        if isinstance(where, torch.dtype):
            return self
        made = self._materialize
        materialize = None if made is None else lambda: made().to(where)
        return Mask(self.expr, {name: tensor.to(where) for name, tensor in self.params.items()}, self._shape, self._of_module, materialize)

    def contiguous(self) -> "Mask":
        return self

    def tensor(self, what: str) -> Tensor:
        """The mask as a tensor, for this operation of a model's own. Raises NotImplementedError for a model whose attention would not be foveal's, and
        where the operation takes True and False for numbers."""
        if self._materialize is None:
            raise _computes(what)
        logging.route.debug("attention mask of %d x %d: a tensor, for %s of the model's own", *self._shape[2:], what)
        found = self._materialize()
        if found.dtype == torch.bool and what.strip("_") in _ARITHMETIC:
            raise _computes(what)
        self._materialize = lambda: found
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        args, kwargs = tree_map(lambda x: x.tensor(name) if isinstance(x, Mask) else x, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if hasattr(Tensor, name) and not name.startswith("__"):
            return getattr(self.tensor(name), name)
        raise AttributeError(f"{name}: no attribute of an attention mask")

    def __getitem__(self, index: Any) -> Any:
        return self.tensor("__getitem__")[index]


def _computes(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"attn_implementation='foveal': {what} of an attention mask: this model computes with its mask by itself; use attn_implementation='eager'"
    )


_NUMBERS = "add sub mul truediv floordiv mod pow"
_ARITHMETIC = {f"{reflected}{name}{in_place}" for name in f"{_NUMBERS} div neg".split() for reflected in ("", "r") for in_place in ("", "_")}


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *operands: getattr(self.tensor(name), name)(*operands)


_OF_PAIRS = f"{_NUMBERS} and or xor"  # without which a number or a mask beside it gets Python's own error
for _name in (*f"invert neg lt le gt ge {_OF_PAIRS}".split(), *(f"r{name}" for name in _OF_PAIRS.split())):
    setattr(Mask, f"__{_name}__", _operator(f"__{_name}__"))


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Mask | Tensor | None:
    """transformers' mask interface: which keys each query sees.

    mask_function: of (batch, head, position of the query, position of the key); attention_mask: [batch, positions], False where padding is.
    q_offset, kv_offset: the positions of the first query and the first key. Returns a Mask; a tensor [batch, 1, q_length, kv_length] inside
    torch.compile, and for functions that cannot be an expression; None where every query sees every key and the model may be told so.
    """
    arguments = dict(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset, mask_function=mask_function)
    materialize = functools.partial(_materialized, arguments, attention_mask, device, kwargs)
    modeling = _modeling_of(kwargs.get("config"))
    if torch.compiler.is_compiling() or _asks_for_tensors(modeling):
        return materialize()
    padding = given = None
    if attention_mask is not None and not bool(attention_mask.all()):
        whole: Any = prepare_padding_mask(attention_mask, kv_length, kv_offset)  # type: ignore[arg-type]  # offsets may be tensors
        padding = whole.to(torch.bool)
    elif attention_mask is not None and attention_mask.shape[-1] < _reach(mask_function, q_length, kv_length, q_offset, kv_offset):
        given = torch.tensor(attention_mask.shape[-1], device=device)  # positions beyond are padding
    whole_is_seen = mask_function is bidirectional_mask_function and padding is None and given is None
    if whole_is_seen and kwargs.get("allow_is_bidirectional_skip") and _takes_bool_masks(modeling):
        return None

    q_shift, kv_shift = _shift(q_offset, device), _shift(kv_offset, device)
    growing = isinstance(q_offset, int) and isinstance(kv_offset, int) and q_offset + q_length == kv_offset + kv_length > q_length

    def kept(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        kv_position = kv_idx + kv_shift
        # The last query stands at the last key in a cache that grows: the same expression at each step.
        q_position = q_idx + (_core.seqlen_kv - _core.seqlen_q) + kv_shift if growing else q_idx + q_shift
        result = mask_function(b, h, q_position, kv_position)
        if given is not None:
            return result & (kv_position < given)
        return result if padding is None else result & padding[b, kv_position]

    try:
        described = describe(None, kept, tracer=TorchTracer())
    except (TypeError, ValueError, IndexError, NotImplementedError, AttributeError):  # a function of a model's own, not of positions alone
        return materialize()
    assert described.mask is not None
    if calls.context is not None and described.arrays:
        _refuse_masks_of_shards(padding is not None)
    params = {param.name: tensor for param, tensor in zip(described.params, described.arrays)}
    of_module = getattr(kwargs.get("config"), "model_type", None) in transformers_alibi.MODEL_TYPES
    # Later, when a cache may have changed its own offsets in place.
    kept_as_now = {name: value.clone() if isinstance(value, Tensor) else value for name, value in arguments.items()}
    tensor = functools.partial(_materialized, kept_as_now, attention_mask, device, kwargs, skip=False) if _has_interface(modeling) else None
    return Mask(described.mask, params, (batch_size, 1, q_length, kv_length), of_module, tensor)  # type: ignore[arg-type]  # without a skip a tensor


def _refuse_masks_of_shards(is_padding: bool) -> None:
    """Within context_parallel(), where transformers makes them for this rank's tokens and masks are those of the whole."""
    if is_padding:
        error = NotImplementedError("attention_mask: padding within context_parallel(); expected ones, or packed sequences")
    else:
        error = NotImplementedError(
            "position_ids: within context_parallel() they are not consecutive, which transformers takes for packed sequences unless it gets an "
            "attention_mask; expected one of ones, [batch, this rank's tokens]"
        )
    calls.context.refused(error)  # positions of other ranks may be consecutive
    raise error


def _modeling_of(config: Any) -> str:
    """The name of the module with the model's own code; "" without a configuration."""
    return "" if config is None else type(config).__module__.replace(".configuration_", ".modeling_")


@functools.lru_cache(256)
def _asks_for_tensors(modeling: str) -> bool:
    """Whether the model's own code asks what its mask is, and leaves out what is no tensor where it makes another mask of it: Doge asks for BlockMasks,
    DeepSeek V4 for tensors."""
    module = sys.modules.get(modeling)
    if module is None or hasattr(module, "BlockMask"):
        return module is not None
    try:
        return "isinstance(attention_mask, torch.Tensor)" in inspect.getsource(module)
    except (OSError, TypeError):  # no source
        return False


@functools.lru_cache(256)
def _has_interface(modeling: str) -> bool:
    """Whether some model in this module calls its attention through transformers' interface."""
    return hasattr(sys.modules.get(modeling), "ALL_ATTENTION_FUNCTIONS")


@functools.lru_cache(256)
def _takes_bool_masks(modeling: str) -> bool:
    """Whether some model in this module takes masks of SDPA's or FlexAttention's. The code of others adds its mask to the scores, as eager attention
    does: True and False would count as 1 and 0."""
    kinds = [kind for kind in getattr(sys.modules.get(modeling), "__dict__", {}).values() if isinstance(kind, type) and issubclass(kind, PreTrainedModel)]
    return any([kind._supports_sdpa or kind._supports_flex_attn for kind in kinds if kind.__module__ == modeling])


def _shift(offset: int | Tensor, device: torch.device | str) -> Any:
    """0, or a tensor of one element: a number that changes from step to step is no part of the expression."""
    if isinstance(offset, int):
        return 0 if offset == 0 else torch.tensor(offset, device=device)
    return offset.clone()  # the cache's own, which it changes in place


def _reach(mask_function: Callable[..., Any], q_length: int, kv_length: int, q_offset: int | Tensor, kv_offset: int | Tensor) -> int:
    """Beyond which position no query sees a key: what a mask says of later ones, as of those that a static cache has room for, is not asked."""
    end = kv_offset + kv_length
    return int(min(end, q_offset + q_length) if mask_function is causal_mask_function else end)


def _materialized(arguments: dict[str, Any], attention_mask: Tensor | None, device: Any, rest: dict[str, Any], skip: bool = True) -> Tensor | None:
    """As a tensor: of bool where the model's code takes such, else of numbers to add. skip: None where every query sees every key and it may be so."""
    logging.route.debug("attention mask of %d x %d: a tensor", arguments["q_length"], arguments["kv_length"])
    rest = {**rest, "allow_is_causal_skip": False}
    of_numbers = not _takes_bool_masks(_modeling_of(rest.get("config"))) or getattr(rest.get("config"), "model_type", None) in transformers_alibi.MODEL_TYPES
    if of_numbers or not skip:
        rest["allow_is_bidirectional_skip"] = False
    return (eager_mask if of_numbers else sdpa_mask)(**arguments, attention_mask=attention_mask, device=device, **rest)


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    indices: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: (output [batch, seqlen_q, heads, head_dim_v], None).

    query: [batch, heads, seqlen_q, head_dim]; key, value: [batch, heads_kv, seqlen_kv, ...]. attention_mask: a Mask, or a tensor that broadcasts to
    [batch, heads, seqlen_q, seqlen_kv or more], bool (True = keep) or float (added); None: causal where the module is. s_aux: [heads], sinks.
    position_bias: broadcasts to [batch, heads, seqlen_q, seqlen_kv], added, and trained. cu_seq_lens: of packed sequences, which see only themselves.
    indices: [batch, seqlen_q, n], the keys that a query may see, of sparse attention (DeepSeek V3.2).
    """
    _check_asked(module, kwargs)
    score, masks = "score", list[str]()
    params: dict[str, Any] = {}
    if softcap is not None:
        score = f"{float(softcap)} * tanh(score / {float(softcap)})"
    if position_bias is not None:
        score += " + " + _read("position_bias", position_bias, query, key, params)
    expr = None
    if isinstance(attention_mask, Mask):
        _check(attention_mask, query, key)
        expr, params = attention_mask.expr, {**attention_mask.params, **params}
    elif attention_mask is not None:
        read = _read("attn_mask", attention_mask, query, key, params)
        if attention_mask.dtype == torch.bool:
            masks.append(read)
        else:
            score += " + " + read
    elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        masks.append("kv_idx <= q_idx")
    if cu_seq_lens_q is not None:
        params["documents"] = _documents(cu_seq_lens_q, cu_seq_lens_k, query, key)
        masks.append("documents[q_idx] == documents[kv_idx]")
    if indices is not None:
        params["chosen"] = indices.new_zeros(*indices.shape[:2], key.shape[2], dtype=torch.bool).scatter_(-1, indices.long(), True)
        masks.append("chosen[batch, q_idx, kv_idx]")
    if expr is not None and masks:
        read_params = [_core.Param(name, list(params[name].shape), kind) for name, kind in _OF_MASKS.items() if name in params]
        expr = expr & _core.parse(" & ".join([f"({mask})" for mask in masks]), read_params)
    mask = expr if expr is not None else " & ".join([f"({mask})" for mask in masks]) or None

    arguments: dict[str, Any] = {"scale": scaling, "params": params, "sink": s_aux}
    rng = Rng()
    if dropout > 0.0:
        arguments["dropout_p"], rng = dropout, draw_rng(query.device)
    program, captured = bound(score if score != "score" else None, mask, Options(), arguments, heads_first=True)
    out, _ = call(program, captured, query, key, value, rng=rng)
    return out.transpose(1, 2).contiguous(), None


_OF_MASKS = {"documents": _core.Type.integer, "chosen": _core.Type.boolean}  # tensors that attention_forward makes masks of


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _check_asked(module: torch.nn.Module, asked: dict[str, Any]) -> None:
    """Refuses what a model asks of its attention and attention_forward does not give. asked: by argument, or by hooks that record what layers return."""
    collector: Any = output_capturing._active_collector
    if asked.get("output_attentions") or any(["attentions" in recorded for recorded in collector.get() or ()]):
        raise NotImplementedError("attn_implementation='foveal': output_attentions: probabilities are never in memory; use attn_implementation='eager'")
    if asked.get("cache") is not None:
        raise NotImplementedError("attn_implementation='foveal': cache: a paged cache; use attn_implementation='paged|eager'")
    for name in _meant_for_attention(module) & asked.keys():
        if asked[name] is not None:
            unknown = f"{name}: a part of this model's attention that foveal does not know"
            raise NotImplementedError(f"attn_implementation='foveal': {unknown}; use attn_implementation='eager'")


# What masks say already, is asked for above, or kernels of another kind need.
_FOR_OTHERS = {"sliding_window", "output_attentions", "max_length_q", "max_length_k", "position_ids", "deterministic"}


def _meant_for_attention(module: torch.nn.Module) -> set[str]:
    """The arguments that the model's own attention has, or that its module names where it calls one, and that are none of attention_forward's. Others come
    from the model's caller."""
    eager = getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)
    own = _parameters(eager) if inspect.isfunction(eager) else set()
    kind: Any = type(module)
    return (own | _words(kind)) - _parameters(attention_forward) - _FOR_OTHERS


@functools.lru_cache(256)
def _words(kind: Any) -> set[str]:
    """The strings in the code of a module's forward(), among them the keywords in its calls."""
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    nested = [constant if isinstance(constant, tuple) else (constant,) for constant in getattr(code, "co_consts", ())]
    return {word for group in nested for word in group if isinstance(word, str)}


@functools.lru_cache(256)
def _parameters(function: Callable[..., Any]) -> set[str]:
    return {name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind != inspect.Parameter.VAR_KEYWORD}


def _check(mask: Mask, query: Tensor, key: Tensor) -> None:
    batch, _, seqlen_q, seqlen_kv = mask.shape
    if (seqlen_q, seqlen_kv) != (query.shape[2], key.shape[2]) or query.shape[0] % batch != 0:
        raise ValueError(
            f"attn_implementation='foveal': attention_mask: for batch {batch}, {seqlen_q} queries, {seqlen_kv} keys; "
            f"expected batch {query.shape[0]}, {query.shape[2]} queries, {key.shape[2]} keys"
        )


def _read(name: str, tensor: Tensor, query: Tensor, key: Tensor, params: dict[str, Tensor]) -> str:
    """Binds a tensor that broadcasts to the scores; the text of its read. Keys that are not there yet, of a static cache, are cut off."""
    full = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    tensor = tensor.reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape))[..., : full[3]]
    if any([extent not in (1, whole) for extent, whole in zip(tensor.shape, full)]):
        raise ValueError(f"attn_implementation='foveal': {name}: shape {tuple(tensor.shape)}; expected one that broadcasts to {full}")
    params[name] = tensor
    symbols = ("batch", "head", "q_idx", "kv_idx")
    return f"{name}[{', '.join([symbol if extent > 1 else '0' for extent, symbol in zip(tensor.shape, symbols)])}]"


def _documents(cu_q: Tensor, cu_kv: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """int32 [seqlen]: which of the packed sequences each position belongs to."""
    if query.shape[0] != 1 or query.shape[2] != key.shape[2] or (cu_kv is not None and cu_kv is not cu_q and not torch.equal(cu_q, cu_kv)):
        raise NotImplementedError("attn_implementation='foveal': cu_seq_lens: expected batch 1, and the same lengths for queries and keys")
    return torch.searchsorted(cu_q.to(torch.int32), torch.arange(query.shape[2], dtype=torch.int32, device=query.device), right=True, out_int32=True)
