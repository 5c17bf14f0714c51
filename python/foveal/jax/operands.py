"""The operands of a pass: arrays of JAX made of what users give."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import arrays
from ..describe import Description
from ..signatures import LENGTHS, length_slots

RNG_STATE = "rng_state"


def owned(value: Any) -> jax.Array:
    """As an array of JAX, whose elements are those of now: jnp.asarray() may read NumPy's arrays later, when the user has changed them, and takes a
    jax.Ref for a sequence without an end."""
    if is_ref(value):
        return value[...]  # type: ignore[no-any-return]
    return jnp.asarray(value.copy() if isinstance(value, np.ndarray) else value)


def is_ref(value: Any) -> bool:
    """A jax.Ref, an array that programs write into; also one that is traced."""
    return isinstance(value, jax.Ref)


def wide(dtype: Any) -> Any:
    """The dtype of lse and of sums, for arrays of this one."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def array(value: Any, name: str) -> jax.Array:
    """Of JAX; NumPy's arrays are taken for such."""
    if isinstance(value, np.ndarray):
        arrays.check_plain(value, name)
        return owned(value)
    if is_ref(value):
        raise TypeError(f"attention: {name}: found a jax.Ref; expected its elements: ref[...]")
    if not isinstance(value, jax.Array):
        raise TypeError(f"attention: {name}: found {type(value).__module__}.{type(value).__qualname__}; expected a JAX array")
    arrays.check_sizes(value, name)
    return value


def by_role(lengths: tuple[Any, Any], rng_state: Any, **tensors: Any) -> dict[str, Any]:
    """lengths: how tokens of q and of k and v lie."""
    of_lengths = {role: array(x, role) for role, x in zip(LENGTHS, length_slots(*lengths)) if x is not None}
    return {**tensors, **of_lengths, **({} if rng_state is None else {RNG_STATE: rng_state})}


def state_of_dropout(description: Description, seed: Any, offset: Any, rng_state: Any) -> Any:
    """{seed, offset} as one operand, or None where nothing is dropped: a compiled program serves every seed."""
    if not description.dropout:
        return None
    if rng_state is None and seed is None:
        raise ValueError("attention: seed: found None; expected an integer, as dropout_p is not 0: JAX has no generator to draw one from")
    if rng_state is None:
        return jnp.stack([*_words(seed, "seed"), *_words(offset, "offset")])
    if not isinstance(rng_state, (jax.Array, np.ndarray)):
        raise TypeError(f"attention: rng_state: found {type(rng_state).__name__} {rng_state!r}; expected an array: int64 or uint64 [2], or uint32 [4]")
    rng_state = owned(rng_state)
    if (rng_state.shape, str(rng_state.dtype)) not in (((2,), "int64"), ((2,), "uint64"), ((4,), "uint32")):
        raise ValueError(f"rng_state: {rng_state.dtype}{list(rng_state.shape)}; expected int64 or uint64 [2], or uint32 [4] with low halves first")
    return rng_state


def _words(value: Any, name: str) -> list[Any]:
    """The low and the high half of a seed or an offset, an integer that may be traced."""
    if not isinstance(value, jax.Array):
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(f"attention: {name}: found {type(value).__name__} {value!r}; expected an integer") from None
        if not 0 <= value < 2**64:
            raise ValueError(f"{name}: {value}; expected 0 to 2**64 - 1")
        return [np.uint32(value & 0xFFFFFFFF), np.uint32(value >> 32)]
    if value.ndim != 0 or not jnp.issubdtype(value.dtype, jnp.integer):
        of_key = ": of a key, jax.random.bits(key)" if value.shape == (2,) or jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else ""
        raise ValueError(f"{name}: {value.dtype}{list(value.shape)}; expected one integer{of_key}")
    high = value >> 32 if value.dtype.itemsize == 8 else 0
    return [value.astype(jnp.uint32), jnp.asarray(high).astype(jnp.uint32)]
