"""Arrays of JAX made of what users give."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def owned(value: Any) -> jax.Array:
    """As an array of JAX, whose elements are those of now: jnp.asarray() may read NumPy's arrays later, when the user has changed them."""
    return jnp.asarray(value.copy() if isinstance(value, np.ndarray) else value)
