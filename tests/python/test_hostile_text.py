"""Names and texts that try to put something else into generated code are refused at the Python doors."""

import numpy
import pytest

import foveal

NAMES = ["", "9a", "a b", "a-b", "a[0]", "a;", "a\nb", "a\\", 'a"b', "a*/b", "//a", "#include", 'a\n#include "/etc/passwd"\n',
         "a;}__device__ int x=system(1);{", "π", "ａ", "$a", "a.b", "a::b", "%s%n", "a\0b", "a: real[4]", " ", "a\u200bb"]  # fmt: skip
PROGRAMS = ["score; system(1)", "score /* x */", "score }", "score # x", '"score"', "score + 0x7", "score + 1f", "score\0", "score, 1",
            "__import__('os').system('true')", "score if 1 else 2", "score\u00a0+ 1", "(lambda: score)()", "score.real"]  # fmt: skip


def tensors():
    random = numpy.random.default_rng(3)
    return [random.standard_normal((1, 4, 1, 8), dtype=numpy.float32) for _ in range(3)]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_identifier_is_no_name(name):
    q, k, v = tensors()
    with pytest.raises((ValueError, TypeError)):
        foveal.attention(q, k, v, score_mod="score", params={name: numpy.ones(4, numpy.float32)})


@pytest.mark.parametrize("program", PROGRAMS)
def test_text_that_is_no_program_is_refused(program):
    q, k, v = tensors()
    with pytest.raises((ValueError, TypeError)):
        foveal.attention(q, k, v, score_mod=program)
    with pytest.raises((ValueError, TypeError)):
        foveal.attention(q, k, v, mask=program)


@pytest.mark.parametrize("name", ["int", "return", "lambda", "__class__", "system", "real", "q", "out"])
def test_any_identifier_is_a_name(name):
    q, k, v = tensors()
    table = numpy.arange(4, dtype=numpy.float32)
    out = foveal.attention(q, k, v, score_mod=f"score + {name}[kv_idx]", params={name: table})
    assert numpy.array_equal(out, foveal.attention(q, k, v, score_mod="score + t[kv_idx]", params={"t": table}))
