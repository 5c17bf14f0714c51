"""foveal's own signature for torch: a function, and a module that is traced once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from .._core import Expr
from ..argument_errors import public
from ..describe import Description, Rng, bind, describe
from ..signatures import Arguments, Mask, Options, Running, ScoreMod, Settings, check_flags, check_names, check_seeds, tokens
from .calls import call, draw_rng
from .programs import bound
from .tracing import TorchTracer

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ACCEPTED = (*Arguments.__annotations__, "return_lse")


_ATTRIBUTES = frozenset(
    "names key _texts _sink _arguments _options _dropping_key "
    "_wide_texts _wide_key _wide_dropping_key _not_wide _on_cpu_alone".split()
)  # of an Attention's own


class Attention(torch.nn.Module):
    """A module that traces a score and a mask once. Call it on q, k, v any number of times, also inside torch.compile (no graph break).

    Tensors that the functions capture become parameters (torch.nn.Parameter) or buffers (the others, not in the state dict) of this module,
    under their names in `params`, or p0, p1, ... in the order of their first read. Arguments as in foveal.attention(). Dropout is active in training
    mode only and draws new pairs at each call. The module can be copied, and saved as a whole with torch.save.
    """

    @public("foveal.torch.Attention")
    def __init__(self, score_mod: ScoreMod = None, mask: Mask = None, *, options: Options = Options(), **arguments: Unpack[Settings]):
        super().__init__()
        check_names("Attention", arguments, (*Settings.__annotations__, "options"))
        described = _described(score_mod, mask, arguments)
        for param, array in zip(described.params, described.arrays):
            if param.name in _ATTRIBUTES or hasattr(self, param.name):
                raise ValueError(f"Attention: params: {param.name!r} is an attribute of the module itself; expected another name")
            if isinstance(array, torch.nn.Parameter):
                self.register_parameter(param.name, array)
            else:
                self.register_buffer(param.name, array, persistent=False)
        self.names = tuple([param.name for param in described.params])
        self._texts = self._wide_texts = _texts_of(described)
        self._not_wide = None  # why it does not take q of float64
        self._on_cpu_alone = None  # why it takes no q on a GPU
        if callable(score_mod) and not isinstance(score_mod, Expr):
            try:
                self._wide_texts = _texts_of(_alike(described, _described(score_mod, mask, arguments, dtype=torch.float64)))
            except Exception as error:  # of a function that is not made for it
                self._not_wide = str(error)
        if any([callable(fn) and not isinstance(fn, Expr) for fn in (score_mod, mask)]):
            try:
                on_gpu = _alike(described, _described(score_mod, mask, arguments, device="cuda"))
                self._on_cpu_alone = None if _texts_of(on_gpu) == self._texts else "it asks for the device of its tensors, and is another function there"
            except Exception as error:
                self._on_cpu_alone = str(error)
        self._sink = None if described.sink is None else described.sink.name
        self._arguments = {name: value for name, value in _settings(arguments).items() if name not in ("params", "sink")}
        self._options = options
        self._bind()

    def _bind(self) -> None:
        """The keys of its programs, from text: the same in every process."""
        given = {"params": {name: getattr(self, name) for name in self.names}, "sink": None if self._sink is None else getattr(self, self._sink)}

        def key(texts: tuple[str | None, ...], dropout_p: float) -> str:
            described = describe(*texts, tracer=TorchTracer(), **{**self._arguments, **given, "dropout_p": dropout_p})
            return bind(described, self._options).program.key

        dropout_p = self._arguments.get("dropout_p", 0.0)
        self.key, self._wide_key = (key(texts, 0.0) for texts in (self._texts, self._wide_texts))
        self._dropping_key, self._wide_dropping_key = (key(texts, dropout_p) for texts in (self._texts, self._wide_texts))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._bind()

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={text!r}" for name, text in zip(("score_mod", "mask"), self._texts) if text is not None)

    @public("foveal.torch.Attention")
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens: tuple[Tensor, Tensor | None] | None = None,
        block_table: Tensor | None = None,
        seqlens_kv: Tensor | None = None,
        max_seqlens: tuple[int, int] = (0, 0),
        seed: int | None = None,
        offset: int = 0,
        rng_state: Tensor | None = None,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(out, lse) or out: q [batch, seqlen_q, heads_q, head_dim] and so on, as foveal.attention(). seed, offset, rng_state: of dropout; drawn
        from torch's generator of q's device when none is given."""
        if type(return_lse) is not bool:
            check_flags("Attention", return_lse=return_lse)
        captured = [getattr(self, name) for name in self.names]
        drops = self.training and self._dropping_key != self.key
        wide = isinstance(q, Tensor) and q.dtype == torch.float64
        if wide and self._not_wide is not None:
            raise NotImplementedError(f"Attention: q: of float64, for whose scores score_mod could not be traced: {self._not_wide}")
        if self._on_cpu_alone is not None and isinstance(q, Tensor) and q.is_cuda:
            raise NotImplementedError(f"Attention: q: on {q.device}, for which score_mod and mask could not be traced: {self._on_cpu_alone}; expected foveal.torch.attention()")
        key = (self._wide_dropping_key if wide else self._dropping_key) if drops else self._wide_key if wide else self.key
        rng = _rng(seed, offset, rng_state, q.device) if drops else Rng()
        lengths = cu_seqlens
        if block_table is not None or seqlens_kv is not None:
            lengths = tokens("Attention", cu_seqlens, block_table, seqlens_kv)
        out, lse = call(key, captured, q, k, v, lengths, max_seqlens, rng)
        return (out, lse) if return_lse else out


    if TYPE_CHECKING:  # as forward(), which Module calls

        @overload
        def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = False, **arguments: Unpack[Running]) -> Tensor: ...
        @overload
        def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **arguments: Unpack[Running]) -> tuple[Tensor, Tensor]: ...
        def __call__(self, *args: Any, **arguments: Any) -> Any: ...


def _described(score_mod: ScoreMod, mask: Mask, arguments: Settings, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Description:
    """For q of this dtype, which is that of the scores, on such a device."""
    tracer = TorchTracer.like(torch.device(device), dtype)()
    with torch.enable_grad():  # what no_grad() within the functions stops must be seen, wherever this is made
        described = describe(score_mod, mask, tracer=tracer, **_settings(arguments))
    for array in described.arrays:
        if id(array) in tracer.computed and array.requires_grad and not array._is_view():
            raise NotImplementedError(
                "Attention: score_mod or mask computes a whole tensor of trained ones, which would stay as it is while these are trained; "
                "expected reads of them (w[h] * 2 in place of (w * 2)[h]), or foveal.torch.attention()"
            )
    return described


def _texts_of(described: Description) -> tuple[str | None, ...]:
    return tuple([None if expr is None else repr(expr) for expr in (described.score_mod, described.mask)])


def _alike(first: Description, other: Description) -> Description:
    """The latter, which must read the same tensors, or equal ones that the function makes as it runs."""
    pairs = zip(first.arrays, other.arrays)
    same = len(first.arrays) == len(other.arrays) and all([a is b or (a.dtype == b.dtype and torch.equal(a, b.to(a.device))) for a, b in pairs])
    if not same:
        raise NotImplementedError("it reads other tensors than of float32 scores on a CPU; expected the same, or foveal.torch.attention()")
    return other


def _settings(arguments: Settings) -> dict[str, Any]:
    return dict(arguments)


def _rng(seed: int | None, offset: int, rng_state: Tensor | None, device: torch.device) -> Rng:
    check_seeds("attention", seed, offset, rng_state)
    if offset and seed is None and rng_state is None:
        raise ValueError(f"attention: offset: found {offset} without a seed; expected both, or neither: drawn from torch's generator")
    return draw_rng(device) if seed is None and rng_state is None else Rng(seed or 0, offset, rng_state)


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, score_mod: ScoreMod = None, mask: Mask = None, *, return_lse: Literal[False] = False,
    **arguments: Unpack[Arguments],
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, score_mod: ScoreMod = None, mask: Mask = None, *, return_lse: Literal[True], **arguments: Unpack[Arguments]
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, score_mod: ScoreMod = None, mask: Mask = None, *, return_lse: bool, **arguments: Unpack[Arguments]
) -> Tensor | tuple[Tensor, Tensor]: ...
@public("foveal.torch.attention")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    cu_seqlens: Any = None,
    block_table: Any = None,
    seqlens_kv: Any = None,
    max_seqlens: tuple[int, int] = (0, 0),
    dropout_p: float = 0.0,
    seed: Any = None,
    offset: Any = 0,
    rng_state: Any = None,
    return_lse: bool = False,
    options: Options = Options(),
    **arguments: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """foveal.attention() with autograd: q, k, v, the sink and every captured tensor that requires a gradient get one, also through lse.

    q: [batch, seqlen_q, heads_q, head_dim] and so on, see foveal.attention(). Under autocast q, k, v are cast to its dtype.
    dropout_p: without a seed or rng_state one is drawn from torch's generator of q's device.
    """
    if arguments:
        check_names("attention", arguments, _ACCEPTED)
    if type(return_lse) is not bool:
        check_flags("attention", return_lse=return_lse)
    found, captured = bound(score_mod, mask, options, {**arguments, "dropout_p": dropout_p}, heads_first=False, like=q)
    rng = _rng(seed, offset, rng_state, q.device) if dropout_p > 0.0 else Rng()
    lengths = cu_seqlens
    if block_table is not None or seqlens_kv is not None:
        lengths = tokens("attention", cu_seqlens, block_table, seqlens_kv)
    out, lse = call(found, captured, q, k, v, lengths, max_seqlens, rng)
    return (out, lse) if return_lse else out
