"""foveal: exact fused attention, forward and backward, with scores and masks that you write as expressions and train.

    out = foveal.attention(q, k, v, mask=foveal.causal())
    out = foveal.attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + bias[h, q_idx - kv_idx], foveal.causal())

Works on NumPy arrays, torch tensors (with autograd, see foveal.torch), JAX arrays (foveal.jax) and anything with DLPack.
"""

import atexit

from . import _core
from . import logging as logging
from ._core import (
    Error,
    Expr,
    Param,
    batch,
    cos,
    erf,
    exp,
    exp2,
    floor,
    floor_div,
    head,
    kv_idx,
    log,
    log2,
    maximum,
    minimum,
    num_threads,
    parse,
    pow,
    q_idx,
    rsqrt,
    score,
    seqlen_kv,
    seqlen_q,
    set_num_threads,
    sigmoid,
    sin,
    sqrt,
    stop_gradient,
    tan,
    tanh,
    targets,
    to_boolean,
    to_int32,
    to_bfloat16,
    to_float16,
    to_float32,
    to_integer,
    to_real,
    where,
)
from ._core import __version__ as __version__  # type: ignore[attr-defined, unused-ignore]  # stubs have no dunder names
from ._core import abs as abs  # noqa: A004 - the name of the score language
from .api import attention, backward, forward
from .evaluation import MaterializedWarning
from .masks import alibi, causal, causal_bottom_right, dilated, document, global_tokens, padding, prefix_lm, softcap, window
from .plans import Plan, Report, check, explain, plan
from .signatures import Options

atexit.register(_core.finish_ahead)

__all__ = [
    "Error", "Expr", "MaterializedWarning", "Options", "Param", "Plan", "Report", "__version__", "abs", "alibi", "attention", "backward", "batch",
    "causal", "causal_bottom_right", "check", "clamp", "cos", "dilated", "document", "erf", "exp", "exp2", "explain", "floor", "floor_div",
    "forward", "global_tokens", "head", "kv_idx", "log", "log2", "logging", "maximum", "minimum", "num_threads", "padding", "parse", "plan",
    "pow", "prefix_lm", "q_idx", "rsqrt", "score", "seqlen_kv", "seqlen_q", "set_num_threads", "sigmoid", "sin", "softcap", "sqrt",
    "stop_gradient", "tan", "tanh", "targets", "to_boolean", "to_bfloat16", "to_float16", "to_float32", "to_int32", "to_integer", "to_real", "where", "window",
]


def clamp(x: Expr | float, low: Expr | float, high: Expr | float) -> Expr:
    """min(max(x, low), high)."""
    return minimum(maximum(x, low), high)

