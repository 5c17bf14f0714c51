"""Runs a function written with torch once, on symbols, and gives the expression that it comes to."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, ClassVar, Sequence

import torch

from ... import arrays, refusals, trace_key
from ..._core import Expr, Param
from ...captures import Capture
from ...framework_calls import Call, symbolic
from ...runtime_numbers import Number
from . import dispatch, views, writing
from .autograd_functions import refused_on_symbols
from .dtypes import DTYPES, INDICES, NARROW, SIXTEEN_BITS, is_integral
from .meta import meta_of
from .mode import OperatorsSeen, TracingMode, function_modes
from .state import TorchState
from .symbol import Symbol
from .table import READS

_OF_NUMBERS = frozenset("mul multiply div divide true_divide truediv floor_divide floordiv lerp".split())


class TorchTracer(TorchState):
    device: ClassVar[torch.device] = torch.device("cpu")  # of q
    score_dtype: ClassVar[torch.dtype] = torch.float32

    library = "torch"
    cannot_see = "no tensor of torch"
    can_see = "a tensor: torch.as_tensor(x), outside of the function"
    rebind = False
    tensors = torch.Tensor

    @staticmethod
    @functools.cache
    def like(device: torch.device, dtype: torch.dtype) -> "type[TorchTracer]":
        """For q on this device, of this dtype."""
        score_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        return type("TorchTracer", (TorchTracer,), {"device": device, "score_dtype": score_dtype})

    @classmethod
    def setting(cls) -> Any:
        """What a function sees without reading it."""
        modes = function_modes() if torch._C._len_torch_function_stack() > 0 else ()
        return torch.is_grad_enabled(), torch.get_default_dtype(), modes

    @classmethod
    def scalar(cls, value: float | int) -> Any:
        if cls.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None  # a replay would read what it was
        return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64, device=cls.device)

    @staticmethod
    def kind(array: Any) -> type:
        return torch.Tensor  # also of a Parameter

    @staticmethod
    def size(shape: tuple[int, ...]) -> Any:
        return lambda dim=None: torch.Size(shape) if dim is None else shape[dim]

    def param(self, array: Any, called: str | None = None) -> Param:
        if not isinstance(array, torch.Tensor):
            raise TypeError(f"a captured tensor: found {type(array).__name__}; expected a torch.Tensor: torch.as_tensor(x), outside of the function")
        return super().param(array, called)

    def attribute(self, capture: Capture, name: str) -> Any:
        if name in views.PROPERTIES:
            return views.PROPERTIES[name](capture)
        if name in views.NAMES or name in READS:
            return lambda *args, **kwargs: dispatch.call(self, getattr(torch.Tensor, name), (capture, *args), kwargs)
        return super().attribute(capture, name)

    def symbol(self, items: Sequence[Expr], shape: tuple[int, ...], dtype: torch.dtype) -> Symbol:
        made = Symbol(self, items, shape, dtype)
        made._recorded = not self.gradient_stopped()
        return made

    def write(self, name: str, x: Any, result: Any) -> Any:
        return writing.with_result(x, name, result)

    def dtype_of(self, expr: Expr) -> torch.dtype:
        return DTYPES[expr.type]

    def dtype_of_scores(self) -> Any:
        return self.score_dtype

    def narrow(self, dtype: torch.dtype) -> tuple[int, int] | None:
        return NARROW.get(dtype)

    def dtype_of_operands(self, call: Call, given: Sequence[Any]) -> torch.dtype:
        dtype: torch.dtype = call.result.dtype
        if dtype == torch.bool and len(given) == 2:  # a comparison
            return torch.result_type(*[meta_of(value) for value in given])
        return dtype

    def operand(self, call: Call, value: Any, dtype: torch.dtype) -> Any:
        """Beside tensors with dimensions, products and quotients of 16 bits take a number, or a tensor that is one, as it is."""
        is_one = isinstance(value, (int, float, Number)) or (isinstance(value, torch.Tensor) and value.ndim == 0)
        taken = call.name in ("mul", "multiply") or not (call.args and value is call.args[0])
        as_it_is = is_one and taken and dtype in SIXTEEN_BITS and call.name in _OF_NUMBERS and (len(call.result.shape) > 0 or call.name == "lerp")
        return super().operand(call, value, torch.float32 if as_it_is else dtype)

    def held(self, number: int, dtype: torch.dtype) -> int:
        if not is_integral(dtype):
            return number
        info = torch.iinfo(dtype)
        result: int = (number - info.min) % 2**info.bits + info.min
        return result

    def indices(self, capture: Capture, given: Sequence[Any]) -> tuple[Capture, list[Any]]:
        """Constants as torch takes them: sequences and arrays of NumPy's are tensors, and a mask of n dimensions is n tensors of places."""
        with torch._C.DisableTorchFunction():
            given = [self._constant(value) for value in given]
            if any([_is_mask(value) for value in given]):
                capture, given = self._without_masks(capture, given)
        return super().indices(capture, given)

    def _constant(self, value: Any) -> Any:
        value = arrays.plain_number(value)
        of_numpy = arrays.is_array(value) and arrays.framework(value) == "numpy"
        if not (of_numpy or isinstance(value, (bool, list, tuple, range))) or symbolic(value):
            return value
        self.saw_values = self.saw_values or of_numpy
        tensor = torch.as_tensor(value)
        return tensor if tensor.dtype == torch.bool else self._places(tensor)

    def _places(self, tensor: torch.Tensor) -> Any:
        """Integers that are constants."""
        if tensor.numel() == 0:
            raise NotImplementedError("index of a captured tensor: found one that chooses nothing; expected at least one place")
        if tensor.dtype not in INDICES:
            return tensor
        places = tensor.reshape(-1).tolist()
        return Symbol(self, places, tuple(tensor.shape), torch.int64) if tensor.ndim > 0 else places[0]

    def _without_masks(self, capture: Capture, given: Sequence[Any]) -> tuple[Capture, list[Any]]:
        named = sum([value.ndim if _is_mask(value) else 1 for value in given if value is not None and value is not Ellipsis])
        found, dim = list[Any](), 0
        for value in given:
            found.append(value)
            if value is Ellipsis:
                dim += capture.ndim - named
            elif not _is_mask(value):
                dim += value is not None
            else:
                self.saw_values = True
                if value.ndim == 0:  # True: a new dimension of size 1
                    capture, value, named = capture[(*[slice(None)] * dim, None, ...)], value[None], named + 1
                shape, whose = tuple(value.shape), capture.shape[dim : dim + value.ndim]
                if shape != whose:
                    raise IndexError(f"index of a captured tensor: found a mask of shape {list(shape)}; expected {list(whose)}, the shape of the dimensions that it is for")
                found[-1:] = [self._places(places) for places in value.nonzero(as_tuple=True)]
                dim += value.ndim
        return capture, found

    def index(self, value: Any) -> Any:
        if isinstance(value, (torch.Tensor, Symbol, Capture)) and is_integral(value.dtype) and value.dtype not in INDICES:
            raise NotImplementedError(f"index of a captured tensor: found {value.dtype}, which torch takes for a mask or not at all; expected int64 or int32: .long()")
        if isinstance(value, torch.Tensor) and value.ndim == 0:
            value = self.capture(value)._read()
        return super().index(value)

    def arguments(self, kind: str) -> tuple[Any, ...]:
        score, *places = (Symbol(self, [expr], (), DTYPES[expr.type]) for expr in super().arguments("score_mod"))
        score._dtype = self.score_dtype
        return tuple(places) if kind == "mask" else (score, *places)

    def run(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if TracingMode in function_modes():
            raise NotImplementedError("a score or mask calls foveal.torch itself, with a function of its own; expected what it gives, computed before")
        for mode in function_modes():
            if mode.__module__.partition(".")[0] != "torch":
                raise NotImplementedError(f"a score or mask within {mode.__name__}, a TorchFunctionMode, which does not see the operators of symbols; expected a call outside of it")
        _of_thread.tracers.append(self)
        try:
            with TracingMode(self), OperatorsSeen(self), refused_on_symbols():
                result = fn(*arguments)
            refusals.check()
        except Exception as error:
            if isinstance(error, TypeError) and "incompatible function arguments" in str(error) and "Symbol(" in str(error):
                raise NotImplementedError(
                    f"a score or mask hands a symbol to {str(error).partition('(')[0]}(), which takes tensors alone (a transform of torch.func, a checkpoint, ...); "
                    "expected torch's functions and operators"
                ) from error
            if type(error).__module__.startswith("torch._dynamo") or _is_of_compiling(error):
                raise NotImplementedError("a score or mask calls what torch.compile() made, which does not know symbols; expected the function that it was made of") from error
            raise
        finally:
            _of_thread.tracers.pop()
        if isinstance(result, torch.Tensor):
            result = self.capture(result)._read()
        return result


def _is_of_compiling(error: Exception) -> bool:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") != "torch._dynamo.convert_frame":
        traceback = traceback.tb_next
    return traceback is not None


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.tracers: list[TorchTracer] = []  # of the functions that run now


_of_thread = _OfThread()


def _attribute(expr: Expr, name: str) -> Any:
    """Results of foveal's own functions are tensors to a function that is traced, too."""
    if not _of_thread.tracers or name.startswith("_"):
        raise AttributeError(f"{name}: no attribute of a score expression")
    return getattr(Symbol(_of_thread.tracers[-1], [expr], (), DTYPES[expr.type]), name)


trace_key.watch((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))
Expr.__getattr__ = _attribute  # type: ignore[attr-defined]
_TORCH_FUNCTION = classmethod(lambda cls, func, types, args=(), kwargs=None: dispatch.call(None, func, args, kwargs or {}))
for _kind in (Expr, Capture, Number):
    setattr(_kind, "__torch_function__", _TORCH_FUNCTION)
