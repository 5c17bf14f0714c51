"""NumPy's operators work on symbols of a score; its functions name themselves and say what to use."""

import numpy as np
import pytest

import foveal

X = np.ones((1, 4, 1, 8), np.float32)


@pytest.mark.parametrize("name", ["where", "tanh", "maximum", "sign", "clip", "logical_and", "isclose"])
def test_functions_are_refused_by_name(name):
    arguments = {"where": lambda s, q: (q > 2, s, 0.0), "clip": lambda s, q: (s, -1, 1)}
    others = (lambda s, q: (s,)) if name in ("tanh", "sign") else (lambda s, q: (s, q))
    with pytest.raises(TypeError, match=rf"numpy\.{name}: .*foveal\.where.*torch\.where.*jnp\.where"):
        foveal.attention(X, X, X, score_mod=lambda s, b, h, q, k: getattr(np, name)(*arguments.get(name, others)(s, q)))


def test_operators_compute():
    out = foveal.attention(X, X, X, score_mod=lambda s, b, h, q, k: foveal.where(np.int64(3) > q, np.float64(2) * s, np.array(2.0) * s))
    assert np.array_equal(out, foveal.attention(X, X, X, score_mod="2 * score"))
