"""A Case is one problem line: what is computed, on what sizes. The lines are a subset of docs/problem-lines.md, with scores by name."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DTYPES = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}  # torch's names


@dataclass(frozen=True)
class Case:
    suite: str
    backward: bool
    dtype: str
    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_kv: int
    head_dim: int
    head_dim_v: int
    causal: bool
    score: str  # a name of scores.py, "" for plain

    @property
    def name(self) -> str:
        heads = f"{self.heads_q}" if self.heads_q == self.heads_kv else f"{self.heads_q}:{self.heads_kv}"
        length = f"{self.seqlen_q}" if self.seqlen_q == self.seqlen_kv else f"{self.seqlen_q}:{self.seqlen_kv}"
        dim = f"{self.head_dim}" if self.head_dim == self.head_dim_v else f"{self.head_dim}:{self.head_dim_v}"
        words = [self.dtype, f"b{self.batch}", f"h{heads}", f"q{length}", f"d{dim}"]
        words += ["causal"] if self.causal else []
        words += [f"score={self.score}"] if self.score else []
        return " ".join(["backward" if self.backward else "forward", *words])

    @property
    def flops(self) -> float:
        """4 B H Sq Skv D forward, 2.5 times that backward, half when causal: the convention of the published tables."""
        products = 2.0 * self.batch * self.heads_q * self.seqlen_q * self.seqlen_kv * (self.head_dim + self.head_dim_v)
        return products * (2.5 if self.backward else 1.0) * (0.5 if self.causal else 1.0)

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim)

    def tensors(self, device: str, seed: int = 0) -> dict[str, torch.Tensor]:
        """q, k, v, dout: N(0, 1), memory [batch, seqlen, heads, dim], seen as [batch, heads, seqlen, dim]."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)

        def normal(seqlen: int, heads: int, dim: int) -> torch.Tensor:
            shape = (self.batch, seqlen, heads, dim)
            return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(getattr(torch, DTYPES[self.dtype])).transpose(1, 2)

        return {
            "q": normal(self.seqlen_q, self.heads_q, self.head_dim),
            "k": normal(self.seqlen_kv, self.heads_kv, self.head_dim),
            "v": normal(self.seqlen_kv, self.heads_kv, self.head_dim_v),
            "dout": normal(self.seqlen_q, self.heads_q, self.head_dim_v),
        }


def parse(line: str, suite: str) -> list[Case]:
    """One line gives a case, or one for each pass when it begins with `both`. Throws ValueError naming the word it does not know."""
    words = shlex.split(line)
    fields: dict[str, object] = {"causal": False, "score": ""}
    passes = {"forward": [False], "backward": [True], "both": [False, True]}.get(words[0])
    if passes is None:
        raise ValueError(f"{line!r}: starts with {words[0]!r}; expected forward, backward or both")
    for word in words[1:]:
        pair = re.fullmatch(r"([bhqd])(\d+)(?::(\d+))?", word)
        if word in DTYPES:
            fields["dtype"] = word
        elif word in ("mask=causal()", "causal"):  # the short form is how results name it
            fields["causal"] = True
        elif word.startswith("score="):
            fields["score"] = word.removeprefix("score=")
        elif pair:
            letter, first, second = pair.group(1), int(pair.group(2)), int(pair.group(3) or pair.group(2))
            names = {"b": ("batch",), "h": ("heads_q", "heads_kv"), "q": ("seqlen_q", "seqlen_kv"), "d": ("head_dim", "head_dim_v")}[letter]
            fields.update(zip(names, (first, second)))
        else:
            raise ValueError(f"{line!r}: {word!r} is not understood")
    missing = {"dtype", "batch", "heads_q", "seqlen_q", "head_dim"} - fields.keys()
    if missing:
        raise ValueError(f"{line!r}: lacks {', '.join(sorted(missing))}")
    return [Case(suite=suite, backward=backward, **fields) for backward in passes]  # type: ignore[arg-type]


def read_suite(text: str, suite: str) -> list[Case]:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [case for line in lines if line for case in parse(line, suite)]
