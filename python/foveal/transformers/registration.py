"""foveal as a name among the implementations of transformers, and what is said of models that have no use for it."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any, Callable

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from . import alibi
from .attention import attention_forward
from .masks import Mask, attention_mask
from .models import has_interface


def register(name: str = "foveal") -> None:
    """Makes `name` an attn_implementation of transformers: for from_pretrained, from_config and set_attn_implementation."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    alibi.install(name, Mask, attention_forward)
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
    known = getattr(model.config, "model_type", None) in alibi.MODEL_TYPES
    return known or not attentions or any([has_interface(kind.__module__) for kind in attentions])


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
