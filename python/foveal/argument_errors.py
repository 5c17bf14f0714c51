"""What is said of a wrong call: the public function, the argument, what was found and what is accepted.

Nothing here runs for a right call. A call that failed is looked at again, in the order in which a reader would: names of arguments, tensors,
lengths of packed sequences, numbers. Where nothing is found, the error stands as it was raised, with the function's name.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any, Callable, Mapping, ParamSpec, TypeVar

from . import arrays
from .signatures import check_names

P = ParamSpec("P")
R = TypeVar("R")

_ERRORS = (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError, IndexError, ArithmeticError)


on_errors: list[Callable[[Exception], None]] = []  # who must know when a public function ends by an error, once for each
is_compiling: Callable[[], bool] = lambda: False  # whether torch.compile traces this code: foveal.torch knows


def public(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For functions of q, k, v: errors say what is wrong with the call."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if on_errors and not hasattr(error, "public_function"):
                    on_errors[-1](error)
                if isinstance(error, _ERRORS) and not is_compiling():  # it cannot look at errors; a call that it leaves outside of compiled code comes by here again
                    explain(name, function, args, kwargs, error)
                raise

        return checked

    return decorate


def explain(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> None:
    """Raises what says more than the error; returns where there is no more to say."""
    if type(error).__module__.partition(".")[0] not in ("builtins", "foveal"):
        return
    try:
        parameters = inspect.signature(function).parameters
        if not any([p.kind == p.VAR_KEYWORD for p in parameters.values()]):
            check_names(name, kwargs, [own for own in parameters if own != "self"])
        given = _by_name(name, function, args, kwargs)
        _check_tensors(name, given)
        _check_lengths(name, given)
        _check_arrays(name, given)
        _check_plain_beside_plain(name, given)
        # A public function within said it already, under another name.
        message = str(error)
        for prefix in (getattr(error, "public_function", name), name.rpartition(".")[2], "attention"):
            message = message.removeprefix(f"{prefix}: ")
        argument, separator, rest = message.partition(":")
        own = _OTHER_NAMES.get(argument, argument)
        if argument not in parameters and own in parameters:
            message = own + separator + rest
        message = _renamed(message, parameters)
        kind: Any = ValueError if isinstance(error, UnicodeError) else type(error)  # some take more than a message
        found: Exception = kind(f"{name}: {message}")
    except _ERRORS as better:
        found = better
    setattr(found, "public_function", name)
    raise found from error


# What is called so within is another argument of functions that have another framework's signature.
_OTHER_NAMES = {
    "q": "query", "k": "key", "v": "value", "mask": "block_mask", "cu_seqlens_q": "cu_seq_q", "cu_seqlens_kv": "cu_seq_k", "max_seqlen_q": "max_q",
    "max_seqlen_kv": "max_k", "seqlens_kv": "seqused_k", "rng.state": "rng_state",
}  # fmt: skip


_NAMED = re.compile(r"(?<![\w.])(?:(?:cu|max)_seqlens?_(?:q|kv)|seqlens_kv|rng\.state|[qkv](?='s\b))(?!\w)")


def _renamed(message: str, parameters: Mapping[str, Any]) -> str:
    """With the names that the function's own arguments have, wherever they stand in the text."""

    def own(found: re.Match[str]) -> str:
        name = _OTHER_NAMES.get(found[0], found[0])
        return name if found[0] not in parameters and name in parameters else found[0]

    return _NAMED.sub(own, message)


def _by_name(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(function)
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        unnamed = [own for own, p in signature.parameters.items() if p.kind == p.POSITIONAL_OR_KEYWORD and own != "self"]
        raise TypeError(f"{name}: {error}; expected {', '.join(unnamed)}, and others by their names") from None
    return {**given, **given.pop("arguments", {}), **given.pop("tensors", {})}


def _check_tensors(name: str, given: Mapping[str, Any]) -> None:
    of_jax = ".jax." in name
    tensors = {role: given[role] for role in (_JAX_ROLES if of_jax else _ROLES.get(name, ("q", "k", "v"))) if role in given}
    first = tensors.get("q")
    for role, tensor in tensors.items():
        if tensor is None and (role == "dlse" or name == "foveal.check"):
            continue
        if name == "foveal.check" and isinstance(tensor, str):  # a problem line
            return
        if of_jax:
            _check_jax(f"{name}: {role}", tensor)
            continue
        if not arrays.is_array(tensor):
            kind = "a tensor of torch" if ".torch." in name else _kind_of(first if arrays.is_array(first) else None)
            raise TypeError(f"{name}: {role}: found {type(tensor).__name__}; expected {kind}")
        framework, expected = arrays.framework(tensor), "torch" if ".torch." in name else arrays.framework(first)
        if framework != expected and "torch" in (framework, expected):
            raise TypeError(f"{name}: {role}: found an array of {framework}; expected a tensor of torch" if expected == "torch" else
                            f"{name}: {role}: found a tensor of torch; expected an array of {expected}, as q is")  # fmt: skip
        if framework == "torch":
            _check_torch(f"{name}: {role}", tensor)
        arrays.check_plain(tensor, f"{name}: {role}")


_ROLES = {"foveal.backward": ("q", "k", "v", "out", "lse", "dout", "dlse"), "foveal.check": ("q", "k", "v", "dout", "dlse")}
_JAX_ROLES = ("q", "k", "v", "out", "lse", "dout", "dlse", "query", "key", "value")
_REALS = ("float64", "float32", "bfloat16", "float16")


def _check_jax(what: str, array: Any) -> None:
    if not arrays.is_array(array):
        raise TypeError(f"{what}: found {type(array).__name__}; expected a JAX array, or one of NumPy")
    framework = arrays.framework(array)
    if framework not in ("jax", "numpy"):
        raise TypeError(f"{what}: found {'a tensor' if framework == 'torch' else 'an array'} of {framework}; expected a JAX array, or one of NumPy")
    arrays.check_plain(array, what)
    if str(array.dtype) not in _REALS:
        raise ValueError(f"{what}: dtype {array.dtype}; expected {', '.join(_REALS)}")


def _kind_of(array: Any) -> str:
    return "an array of NumPy, torch, JAX or CuPy" if array is None else f"an array of {arrays.framework(array)}, as q is"


def _check_torch(what: str, tensor: Any) -> None:
    if tensor.is_quantized:
        raise TypeError(f"{what}: a quantised tensor of {tensor.dtype}; expected float64, float32, bfloat16 or float16: dequantize()")
    if str(tensor.layout) != "torch.strided":
        hint = "to_dense()" if "sparse" in str(tensor.layout) else "a dense one"
        raise TypeError(f"{what}: a tensor of layout {tensor.layout}; expected a dense tensor: {hint}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{what}: on device {tensor.device}, where a tensor has no memory to read; expected cpu or cuda" if tensor.is_meta
                         else f"{what}: on device {tensor.device}; expected cpu or cuda")  # fmt: skip


def _check_lengths(name: str, given: Mapping[str, Any]) -> None:
    longest = given.get("max_seqlens", (0, 0))
    if not (isinstance(longest, (tuple, list)) and len(longest) == 2 and all(hasattr(length, "__index__") for length in longest)):
        raise TypeError(f"{name}: max_seqlens: found {longest!r}; expected a pair of integers (longest of q, longest of kv)")
    lengths = given.get("cu_seqlens")
    if lengths is None:
        return
    expected = "expected a pair (for q, for kv), each int32 or int64 [batch + 1]"
    if arrays.is_array(lengths):
        raise TypeError(f"{name}: cu_seqlens: found one array of shape {list(lengths.shape)}; {expected}: (cu, cu) where both are the same")
    if not isinstance(lengths, (tuple, list)) or len(lengths) != 2:
        found = f"{type(lengths).__name__} of {len(lengths)}" if isinstance(lengths, (tuple, list)) else type(lengths).__name__
        raise TypeError(f"{name}: cu_seqlens: found {found}; {expected}")
    for which, array in zip(("q", "kv"), lengths):
        if array is None and which == "kv" and given.get("block_table") is not None:
            continue
        if not arrays.is_array(array):
            raise TypeError(f"{name}: cu_seqlens: for {which}: found {type(array).__name__}; {expected}")


def _check_plain_beside_plain(name: str, given: Mapping[str, Any]) -> None:
    """Lengths, tables and states of another class than q's, whose tensors may hold no memory of their own: a DTensor."""
    q = given.get("q", given.get("query"))
    if ".torch." not in name or not arrays.is_array(q) or _has_own_dispatch(q):
        return
    pair = zip(("cu_seqlens: for q", "cu_seqlens: for kv"), given.get("cu_seqlens") or ())
    for what, tensor in (*pair, *((what, given.get(what)) for what in ("cu_seq_q", "cu_seq_k", "seqused_k", "block_table", "seqlens_kv", "rng_state"))):
        if arrays.is_array(tensor) and _has_own_dispatch(tensor):
            kind = type(tensor).__name__
            raise TypeError(f"{name}: {what}: found a {kind} beside plain tensors; expected a plain one{': full_tensor()' if kind == 'DTensor' else ''}")


def _has_own_dispatch(tensor: Any) -> bool:
    if arrays.framework(tensor) != "torch":
        return False
    import torch

    return isinstance(tensor, torch.Tensor) and type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _check_arrays(name: str, given: Mapping[str, Any]) -> None:
    params, sink = given.get("params"), given.get("sink")
    if params is not None and not isinstance(params, Mapping):
        raise TypeError(f"{name}: params: found {type(params).__name__}; expected a dict of names and arrays")
    for key in params or ():
        if not isinstance(key, str):
            raise TypeError(f"{name}: params: found {type(key).__name__} {key!r} as a name; expected text")
    own = arrays.framework(given["q"]) if arrays.is_array(given.get("q")) else None
    paged = [(what, given.get(what)) for what in ("block_table", "seqlens_kv")]
    for what, array in [*paged, *((f"params[{key!r}]", value) for key, value in (params or {}).items()), ("sink", sink)]:
        if array is None and not what.startswith("params"):
            continue
        if not arrays.is_array(array):
            raise TypeError(f"{name}: {what}: found {type(array).__name__}; expected {'an array' if own is None else f'an array of {own}'}")
        if own == "torch" and arrays.framework(array) != "torch":
            raise TypeError(f"{name}: {what}: found an array of {arrays.framework(array)}; expected a tensor of torch, as q is")
        if ".jax." in name and arrays.framework(array) == "torch":
            raise TypeError(f"{name}: {what}: found a tensor of torch; expected an array of JAX or NumPy")
    if given.get("options") is not None and not hasattr(given["options"], "backend"):
        raise TypeError(f"{name}: options: found {type(given['options']).__name__}; expected foveal.Options(backend=..., target=..., threads=...)")
    for what in ("seed", "offset"):
        number = given.get(what)
        if number is not None and not arrays.is_array(number) and (type(number) is not int or not 0 <= number < 2**64):
            error = ValueError if type(number) is int else TypeError
            raise error(f"{name}: {what}: found {type(number).__name__} {number!r}; expected an integer from 0 to 2**64 - 1")
