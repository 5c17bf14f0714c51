"""What is planned once for arrays like these and run many times, and what foveal says of such a call: explain() and check()."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Mapping

from . import _core, arrays
from ._core import Pass
from .api import ACCEPTED, check_plain, like_lse, split, tracer_of
from .argument_errors import public
from .describe import Bound, Rng, trace, wanted_gradients
from .signatures import BACKWARD_ROLES, FORWARD_ROLES, LENGTHS, Arguments, Array, Mask, ScoreMod, check_flags, check_names, length_slots, pair

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Plan:
    """An attention planned for arrays of fixed shapes: made once by foveal.plan(), run many times, with memory that the caller owns."""

    def __init__(
        self, call: _core.Call, bound: Bound, arrays_by_role: Mapping[str, Any], cu_seqlens: tuple[Any, Any], rng: Rng, backward: bool
    ):
        self._call = call
        self._planned = dict(arrays_by_role)
        self._roles = BACKWARD_ROLES if backward else FORWARD_ROLES
        self._results = ("dq", "dk", "dv") if backward else ("out", "lse")
        self._params = dict(zip(bound.names, bound.arrays))
        self._names = (*self._roles, *LENGTHS, *bound.names)  # of the slots
        # What a run is given by name, in the order of the slots, with what stands where it is not.
        lengths = zip(LENGTHS, length_slots(*cu_seqlens))
        self._defaults = {**dict.fromkeys(self._roles), **dict(lengths), "seed": rng.seed, "offset": rng.offset, "rng_state": rng.state}

    @property
    def kernel(self) -> str:
        """The name of the kernel that runs, e.g. "cpu.avx512.f32.forward"."""
        return self._call.kernel

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory that a run needs, to be aligned to 256 bytes."""
        return self._call.workspace_bytes

    def explain(self) -> dict[str, Any]:
        """As foveal.explain()."""
        return self._call.explain()

    def workspace(self) -> Any:
        """New scratch memory for run(): an array of bytes, of q's framework and on its device. Two concurrent runs must not share it."""
        q = self._planned["q"]
        found = arrays.empty((max(1, self.workspace_bytes),), _core.DType.u8, q)
        if arrays.read(found, "workspace")[5] % 256 == 0:
            return found
        found = arrays.empty((self.workspace_bytes + 256,), _core.DType.u8, q)
        first = -arrays.read(found, "workspace")[5] % 256
        return found[first : first + max(1, self.workspace_bytes)]

    @public("foveal.Plan.run")
    def run(
        self, *, workspace: Array | None = None, params: Mapping[str, Array] | None = None, gradients: Mapping[str, Array] | None = None, **tensors: Any
    ) -> None:
        """Computes into the given outputs.

        workspace: scratch memory of workspace_bytes or more, contiguous, aligned to 256 bytes and on q's device (as workspace() makes it); with it nothing
            is allocated on a GPU. None: allocated for this run (on the CPU the thread's own is used).
        params: {name: array}, instead of the captured arrays.
        gradients: {name: array}, where the gradients of the planned parameters are written.
        tensors: by name, with the planned shapes, strides, dtypes and device: forward q, k, v, out and lse; backward q, k, v, out, lse, dout, dlse
        (when planned), dq, dk, dv. Packed or paged also cu_seqlens, block_table, seqlens_kv, by default the planned ones.
        seed, offset, rng_state: of dropout, as in attention(), by default those that plan() was given.

        Raises ValueError when an array does not match the plan.
        """
        self._bound("run", workspace, params, gradients, tensors)()

    @public("foveal.Plan.bind")
    def bind(
        self, *, workspace: Array | None = None, params: Mapping[str, Array] | None = None, gradients: Mapping[str, Array] | None = None, **tensors: Any
    ) -> Callable[[], None]:
        """A function that runs on these arrays each time it is called, and only checks them and launches. Arguments as in run()."""
        return self._bound("bind", workspace, params, gradients, tensors)

    def _bound(
        self, function: str, workspace: Array | None, params: Mapping[str, Array] | None, gradients: Mapping[str, Array] | None, tensors: dict[str, Any]
    ) -> Callable[[], None]:
        if gradients and self._roles is not BACKWARD_ROLES:
            raise ValueError("gradients: given for a forward pass; expected a plan with backward=True")
        if "cu_seqlens" in tensors:
            tensors["cu_seqlens_q"], tensors["cu_seqlens_kv"] = pair("run", tensors.pop("cu_seqlens"))
        given = {**self._defaults, **tensors}
        if len(given) > len(self._defaults):
            raise ValueError(f"{[*given][len(self._defaults)]}: not a tensor of this pass; expected some of {', '.join(self._roles)}")
        bound = {**self._params, **(params or {})}
        if len(bound) > len(self._params):
            raise ValueError(f"params: no parameter is called {[*bound][len(self._params)]!r}; expected some of {[*self._params]}")
        *slots, seed, offset, rng_state = given.values()
        slots += bound.values()
        check_plain(self._names, slots)
        seed, offset = _counter("seed", seed), _counter("offset", offset)
        _check_writable({**{role: given[role] for role in self._results}, **(gradients or {}), "workspace": workspace})
        if self._roles is BACKWARD_ROLES:
            slots += [(gradients or {}).get(name) for name in bound]
        if workspace is None and slots[0] is not None and not arrays.on_cpu(slots[0]):
            workspace = self.workspace()
        return functools.partial(_run, f"foveal.Plan.{function}", self._call.run, slots, workspace, seed, offset, rng_state)


def _check_writable(results: Mapping[str, Any]) -> None:
    for name, array in results.items():
        if not getattr(getattr(array, "flags", None), "writeable", True):
            raise ValueError(f"{name}: a read-only array; expected one that results can be written to")


def _run(function: str, run: Callable[..., None], *arguments: Any) -> None:
    try:
        run(*arguments)
    except (ValueError, NotImplementedError, RuntimeError, TypeError) as error:
        found: Exception = type(error)(f"{function}: {str(error).replace('rng.state', 'rng_state')}")
        setattr(found, "public_function", function)
        raise found from error


def _check_lengths(lengths: Mapping[str, Any], page_size: int) -> None:
    """By role, on the host. Raises ValueError for what a run refuses, as data of these lengths are laid out."""
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        ends = [] if lengths[name] is None else lengths[name].tolist()
        if ends and (ends[0] != 0 or ends != sorted(ends)):
            raise ValueError(f"{name}: found {ends}; expected 0, then where each sequence ends, in order")
    most = 0 if lengths["block_table"] is None else lengths["block_table"].shape[1] * page_size
    for i, length in enumerate([] if lengths["seqlens_kv"] is None else lengths["seqlens_kv"].tolist()):
        if not 0 <= length <= most:
            raise ValueError(f"seqlens_kv: {length} of sequence {i}; expected 0 to {most}, what a row of block_table holds")


def _counter(name: str, value: Any) -> int:
    """A seed or an offset of dropout."""
    number = value if type(value) is int else operator.index(value) if hasattr(value, "__index__") else -1
    if not 0 <= number < 2**64:
        error = ValueError if hasattr(value, "__index__") else TypeError
        raise error(f"{name}: found {type(value).__name__} {value!r}; expected an integer from 0 to 2**64 - 1")
    return number


@public("foveal.plan")
def plan(
    q: Array,
    k: Array,
    v: Array,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    backward: bool = False,
    dlse: bool = False,
    lse: bool = True,
    gradients: tuple[str, ...] | None = (),
    **arguments: Unpack[Arguments],
) -> Plan:
    """A Plan for arrays like q, k, v (shapes, strides, dtype, device). Outputs are planned contiguous.

    backward: plan the backward pass, with the gradients of q, k, v and of the parameters named in `gradients`; otherwise the forward pass.
    dlse: whether a gradient of lse will be given to the backward pass.
    lse: whether the forward pass computes lse.
    gradients: names of parameters, for the backward pass. None: of those whose captured arrays require one, as tensors of torch do.

        plan = foveal.plan(q, k, v, mask=foveal.causal())
        out, lse, scratch = np.empty_like(q), np.empty((batch, heads, seqlen), np.float32), plan.workspace()
        plan.run(q=q, k=k, v=v, out=out, lse=lse, workspace=scratch)

    The other arguments are those of attention(). Raises as attention() does, before anything runs.
    """
    check_names("plan", arguments, (*ACCEPTED, "backward", "dlse", "lse", "gradients"))
    check_flags("plan", backward=backward, dlse=dlse, lse=lse)
    for name, asked in (("dlse", dlse), ("gradients", gradients)):
        if asked and not backward:
            raise ValueError(f"{name}: found {asked!r} for a forward pass; expected backward=True beside it")
    cu_seqlens, max_seqlens, rng, options, described = split(arguments)
    check_plain(BACKWARD_ROLES, (q, k, v))
    bound = trace(score_mod, mask, options, described, tracer_of(q))
    if gradients is None:
        gradients = tuple(name for name, array in zip(bound.names, bound.arrays) if backward and getattr(array, "requires_grad", False))
    wanted = (True, True, True, *wanted_gradients(gradients, bound.names)) if backward else (lse,)
    slots: list[Any] = [q, k, v, None, None]
    if backward:
        slots += [None, like_lse(q) if dlse else None, None, None, None]
    call = bound.program.plan(Pass.backward if backward else Pass.forward, [*slots, *length_slots(*cu_seqlens)], bound.arrays, wanted, *max_seqlens)
    return Plan(call, bound, {"q": q, "k": k, "v": v}, cu_seqlens, rng, backward)


@public("foveal.explain")
def explain(
    q: Array,
    k: Array,
    v: Array,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    backward: bool = False,
    gradients: tuple[str, ...] | None = None,
    **arguments: Unpack[Arguments],
) -> dict[str, Any]:
    """Says what a call with these arguments would run, and why: backend, kernel, tiles visited and skipped, workspace, FLOPs, refusals.

    Only the shapes, strides, dtypes and device of q, k, v matter. The key "text" holds a printable report.
    gradients: as in plan(). None: with `backward`, those of captured tensors that require one, as in training.
    """
    check_names("explain", arguments, (*ACCEPTED, "backward", "gradients"))
    return plan(q, k, v, score_mod, mask, backward=backward, gradients=gradients, **arguments).explain()


@dataclass(frozen=True)
class Report:
    """Result of foveal.check(); true when everything is within the tolerance."""

    passed: bool
    refused: bool  # no backend can run it: neither a pass nor a failure
    kernel: str
    line: str  # the problem in one line
    failure: str  # what is wrong, and where; empty when nothing is
    tensors: list[dict[str, Any]]  # for each result: name, passed, max_error, max_bound, rms_error, rms_bound, naive_max_error, failure

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        rows = [f"{t['name']}: error {t['max_error']:.2e}, allowed {t['max_bound']:.2e}{'' if t['passed'] else ': ' + t['failure']}" for t in self.tensors]
        verdict = "ok" if self.passed else "refused" if self.refused else "FAILED"
        return "\n".join([f"{verdict}  {self.kernel}  {self.line}", *rows, *([self.failure] if self.failure else [])])


@public("foveal.check")
def check(
    q: Array | str,
    k: Array | None = None,
    v: Array | None = None,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    dout: Array | None = None,
    dlse: Array | None = None,
    gradients: tuple[str, ...] = (),
    **arguments: Unpack[Arguments],
) -> Report:
    """Runs a call and compares its results with the fp64 reference, by the rule of foveal's own tests: the error may be at most twice that of the
    unfused computation in the same precision, plus one unit in the last place.

    q: a problem line (docs/problem-lines.md), whose data are generated: foveal.check('backward f32 b1 h4 q300 d64 mask="causal()"');
    or q, k, v and the other arguments of attention(), whose data are used.
    dout: like out; checks the backward pass too.
    dlse: like lse, or None.
    gradients: names of parameters whose gradients are checked.

    The reference visits every pair: keep the sizes small. Returns a Report, true when everything passed. Raises as attention() does.
    """
    if isinstance(q, str):
        others = {"k": k, "v": v, "score_mod": score_mod, "mask": mask, "dout": dout, "dlse": dlse, "gradients": gradients or None, **arguments}
        for name, given in others.items():
            if given is not None:
                raise TypeError(f"{name}: given beside a problem line, which says everything about the call; expected the line alone")
        arrays.check_ascii("problem line", q)
        return Report(**_core.check_line(q))
    if k is None or v is None:
        raise TypeError("check: expected a problem line, or q, k and v")
    check_names("check", arguments, (*ACCEPTED, "dout", "dlse", "gradients"))
    cu_seqlens, max_seqlens, rng, options, described = split(arguments)
    check_plain(BACKWARD_ROLES, (q, k, v))
    backward = dout is not None
    if not backward and (dlse is not None or gradients):
        raise ValueError(f"{'gradients' if dlse is None else 'dlse'}: given for a forward pass; expected dout beside it")
    of_lse = like_lse(q).shape if dlse is not None else ()
    for name, given, shape in (("dout", dout, (*q.shape[:-1], v.shape[-1])), ("dlse", dlse, of_lse)):
        if given is not None and tuple(given.shape) != tuple(shape):
            raise ValueError(f"{name}: shape {list(given.shape)}; expected {list(shape)}")
    bound = trace(score_mod, mask, options, described, tracer_of(q))
    lengths: Any = {name: arguments.get(name) for name in ("cu_seqlens", "block_table", "seqlens_kv")}
    planned = plan(
        q, k, v, score_mod, mask, backward=backward, dlse=dlse is not None, gradients=gradients,
        max_seqlens=max_seqlens, options=options, **lengths, **described,
    )  # fmt: skip
    slots = [q, k, v, None, None, *([dout, dlse, None, None, None] if backward else []), *length_slots(*cu_seqlens), *bound.arrays]
    on_host = [None if array is None else arrays.on_host(array) for array in slots]
    first = len(BACKWARD_ROLES if backward else FORWARD_ROLES)
    _check_lengths(dict(zip(LENGTHS, on_host[first:])), page_size=k.shape[1])
    seed, offset = (rng.seed, rng.offset) if rng.state is None else [int(x) % 2**64 for x in arrays.on_host(rng.state)]
    return Report(**_core.check_call(planned._call, on_host, seed, offset, *options))
