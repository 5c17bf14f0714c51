"""Models of transformers that compute their attention in their own modules, with ALiBi: Bloom, Falcon, MPT.

They know no attention interface. Where a foveal Mask reaches such a module, its attention is foveal's, with the module's own projections; a tensor
goes the way of transformers, but in Falcon, which knows what implementation was chosen and hands on masks of its caller's.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn.functional import dropout
from transformers.models.bloom import modeling_bloom as bloom
from transformers.models.falcon import modeling_falcon as falcon
from transformers.models.mpt import modeling_mpt as mpt

Attend = Callable[..., tuple[Tensor, None]]  # transformers' attention interface

MODEL_TYPES = {"bloom", "falcon", "mpt"}
_names: set[str] = set()  # of the implementation


def install(name: str, mask_type: type, attend: Attend) -> None:
    """Once for each name."""
    _names.add(name)
    falcon.FALCON_ATTENTION_CLASSES[name] = falcon.FalconAttention
    for module, forward in ((bloom.BloomAttention, _bloom), (falcon.FalconAttention, _falcon), (mpt.MptAttention, _mpt)):
        if not hasattr(module.forward, "of_transformers"):
            _replace(module, forward, mask_type, attend)


def _replace(module: Any, ours: Callable[..., Any], mask_type: type, attend: Attend) -> None:
    theirs = module.forward

    @functools.wraps(theirs)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_chosen(self) or any(isinstance(value, mask_type) for value in (*args, *kwargs.values())):
            if kwargs.get("output_attentions"):
                raise NotImplementedError("attn_implementation='foveal': output_attentions: probabilities are never in memory; use 'eager'")
            return ours(attend, self, *args, **kwargs)
        return theirs(self, *args, **kwargs)

    forward.of_transformers = theirs  # type: ignore[attr-defined]
    module.forward = forward


def _is_chosen(module: Any) -> bool:
    return getattr(getattr(module, "config", None), "_attn_implementation", None) in _names


def _updated(cache: Any, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    return (key, value) if cache is None else cache.update(key, value, layer)


def _p(self: Any) -> float:
    return self.attention_dropout.p if self.training else 0.0


def _bloom(
    attend: Attend, self: Any, hidden_states: Tensor, residual: Tensor, alibi: Tensor, attention_mask: Any, layer_past: Any = None, **_: Any
) -> tuple[Tensor, None]:
    batch, length, _hidden = hidden_states.shape
    query, key, value = self._reshape(self.query_key_value(hidden_states))
    key, value = _updated(layer_past, key, value, self.layer_idx)
    bias = alibi.view(batch, self.num_heads, 1, -1) * self.beta
    out, _none = attend(self, query, key, value, attention_mask, dropout=_p(self), scaling=self.inv_norm_factor, position_bias=bias)
    out = out.reshape(batch, length, -1)
    if self.pretraining_tp > 1 and self.slow_but_exact:  # the order of the sums of the ranks that trained it
        width = self.hidden_size // self.pretraining_tp
        parts = zip(out.split(width, -1), self.dense.weight.split(width, 1))
        out = torch.stack([torch.nn.functional.linear(part, weight) for part, weight in parts]).sum(0)
    else:
        out = self.dense(out)
    return residual + dropout(out, p=self.hidden_dropout, training=self.training), None


def _falcon(
    attend: Attend, self: Any, hidden_states: Tensor, alibi: Tensor | None, attention_mask: Any, position_ids: Any = None, layer_past: Any = None,
    use_cache: bool = False, output_attentions: bool = False, position_embeddings: Any = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    query, key, value = [x.transpose(1, 2) for x in self._split_heads(self.query_key_value(hidden_states))]
    batch, heads, length, head_dim = query.shape
    bias = None
    if alibi is None:
        rotate: Callable[..., tuple[Tensor, Tensor]] = falcon.apply_rotary_pos_emb
        query, key = rotate(query, key, *position_embeddings)
    elif not isinstance(attention_mask, Tensor):  # to which the model has added it
        bias = alibi.view(batch, heads, 1, -1) * self.inv_norm_factor
    key, value = _updated(layer_past, key, value, self.layer_idx)
    # As transformers, which drops nothing without ALiBi.
    p = 0.0 if alibi is None else _p(self)
    out, _none = attend(self, query, key, value, attention_mask, dropout=p, scaling=1.0 / math.sqrt(head_dim), position_bias=bias)
    return self.dense(out.reshape(batch, length, -1)), None


def _mpt(
    attend: Attend, self: Any, hidden_states: Tensor, position_bias: Tensor | None, past_key_values: Any = None, attention_mask: Any = None, **_: Any
) -> tuple[Tensor, None]:
    batch, length = hidden_states.shape[:2]
    mixed = self.Wqkv(hidden_states)
    if self.clip_qkv:
        mixed = mixed.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    query, key, value = [x.reshape(batch, length, self.n_heads, self.head_dim).transpose(1, 2) for x in mixed.chunk(3, dim=2)]
    key, value = _updated(past_key_values, key, value, self.layer_idx)
    if position_bias is not None:  # [heads, 1, the longest]: the last keys' part
        position_bias = position_bias[:, :, max(0, position_bias.shape[2] - key.shape[2]) :]
    p = self.attn_dropout_p if self.training else 0.0
    out, _none = attend(self, query, key, value, attention_mask, dropout=p, scaling=self.softmax_scale, position_bias=position_bias)
    return self.out_proj(out.reshape(batch, length, -1)), None
