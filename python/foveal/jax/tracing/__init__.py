"""Tracing of functions written with JAX: jnp, jax.nn and jax.lax in a score or mask.

A symbol (tracer.py) is an array of expressions with JAX's shape and dtype. What JAX's functions mean for expressions stands in a table (table.py);
functions that symbols cannot follow are traced by JAX itself (jaxprs.py).
"""

from .tracer import JaxTracer

__all__ = ["JaxTracer"]
