"""Plain and trained attention on one GPU, beside cuDNN (torch SDPA) in the same run.

    python bench/gpu_grid.py run --library build/libfoveal.so --commit HASH --out bench/results/h200-sm90.json [--part trained]
    python bench/gpu_grid.py tables bench/results/h200-sm90.json docs/lab/gpu.md    # between the marks of the page

Plain: 16k tokens, hidden size 2048, bf16. Trained: B4 S4096 hidden 1024, bf16, causal. Times are medians of CUDA-event timings with the L2 cache flushed
between repeats; backward includes every launch that it needs. Results are compared with cuDNN's before they are timed. What is timed runs for 100 ms
before: a GPU that has rested, or did lighter work, is quicker at first than it stays. Trained rows are also timed in short turns with the plain pass.
"""

import argparse
import ctypes as C
import itertools
import json
import math
import os
import statistics
import sys

CAUSAL = "kv_idx <= q_idx"
LENGTHS, HEAD_DIMS = (512, 1024, 2048, 4096, 8192, 16384), (64, 128, 256)


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int32), ("device_kind", C.c_int32), ("device_index", C.c_int32), ("rank", C.c_int32),
                ("sizes", C.c_int64 * 6), ("strides", C.c_int64 * 6)]


class Attention(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("score_mod", C.c_char_p), ("mask", C.c_char_p), ("sink", C.c_char_p), ("scale", C.c_double),
                ("dropout_p", C.c_double), ("dropout_seed", C.c_uint64), ("dropout_offset", C.c_uint64), ("q_offset", C.c_int64),
                ("kv_offset", C.c_int64), ("determinism", C.c_int32), ("backward", C.c_int32), ("checked", C.c_int32), ("reserved", C.c_int32)]


class Param(C.Structure):
    _fields_ = [("declaration", C.c_char_p), ("tensor", C.POINTER(Tensor)), ("gradient", C.POINTER(Tensor))]


class Call(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("pass_", C.c_int32), ("param_count", C.c_int32), ("params", C.POINTER(Param))] + [
        (name, C.POINTER(Tensor)) for name in "q k v out lse dout dlse dq dk dv cu_seqlens_q cu_seqlens_kv".split()
    ] + [("max_seqlen_q", C.c_int64), ("max_seqlen_kv", C.c_int64)]


class Options(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("backend", C.c_char_p), ("target", C.c_char_p), ("threads", C.c_int32), ("reserved", C.c_int32)]


class Library:
    def __init__(self, path):
        self.c = C.CDLL(path)
        self.c.foveal_plan_workspace_bytes.restype = C.c_size_t
        self.c.foveal_plan_kernel.restype = self.c.foveal_last_error.restype = C.c_char_p

    def check(self, failed):
        if failed:
            raise RuntimeError(self.c.foveal_last_error().decode())


class Plan:
    """One pass over torch tensors; params: (declaration, tensor, gradient or None)."""

    def __init__(self, library, backward, mask=None, score=None, params=(), reproducible=False, lengths=None, **tensors):
        import torch
        self.library, self.kept = library, []
        rows = (Param * max(1, len(params)))(*[Param(d.encode(), self.tensor(t), self.tensor(g)) for d, t, g in params])
        self.call = Call(struct_size=C.sizeof(Call), pass_=int(backward), param_count=len(params), params=rows if params else None,
                         **{name: self.tensor(t) for name, t in tensors.items()})
        if lengths is not None:  # packed: (cumulative lengths, the longest)
            self.call.cu_seqlens_q = self.call.cu_seqlens_kv = self.tensor(lengths[0])
            self.call.max_seqlen_q = self.call.max_seqlen_kv = lengths[1]
        self.kept.append(rows)
        attention = Attention(struct_size=C.sizeof(Attention), mask=mask and mask.encode(), score_mod=score and score.encode(), determinism=int(reproducible))
        options = Options(struct_size=C.sizeof(Options), backend=b"cuda")
        self.plan = C.c_void_p()
        library.check(library.c.foveal_plan_create(C.byref(attention), C.byref(self.call), C.byref(options), C.byref(self.plan)))
        bytes_ = library.c.foveal_plan_workspace_bytes(self.plan)
        self.workspace = torch.empty(max(256, bytes_), dtype=torch.uint8, device="cuda")
        self.kernel = library.c.foveal_plan_kernel(self.plan).decode()

    def tensor(self, t):
        import torch
        if t is None:
            return None
        dtype = {torch.bfloat16: 2, torch.float16: 3, torch.float32: 1, torch.int32: 5}[t.dtype]
        view = Tensor(t.data_ptr(), dtype, 1, 0, t.dim())
        view.sizes[: t.dim()], view.strides[: t.dim()] = t.shape, t.stride()
        self.kept.append((view, t))
        return C.pointer(view)

    def run(self):
        import torch
        stream = C.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.library.check(self.library.c.foveal_plan_run(self.plan, C.byref(self.call), C.c_void_p(self.workspace.data_ptr()), stream))


def milliseconds(run, repeat=60, warmup=100):
    from triton.testing import do_bench
    return do_bench(run, warmup=warmup, rep=repeat, return_mode="median")


def normal(*shape):
    import torch
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def tensors(batch, length, heads, dim):
    import torch
    q, k, v, dout = (normal(batch, length, heads, dim) for _ in range(4))
    out, dq, dk, dv = (torch.full_like(q, math.nan) for _ in range(4))
    return dict(q=q, k=k, v=v, out=out, lse=torch.empty(batch, heads, length, device="cuda")), dict(dout=dout, dq=dq, dk=dk, dv=dv)


def plain_case(library, dim, causal, length):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    forward, backward = tensors(16384 // length, length, 2048 // dim, dim)
    mask = CAUSAL if causal else None
    ours, back = Plan(library, False, mask, **forward), Plan(library, True, mask, **forward, **backward)
    q, k, v = (forward[name].transpose(1, 2).detach().requires_grad_() for name in "qkv")
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        sdpa = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out, dout = sdpa(), backward["dout"].transpose(1, 2)
        gradients = lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
        expected = [out, *gradients()]
        ours.run()
        back.run()
        found = [forward["out"], backward["dq"], backward["dk"], backward["dv"]]
        difference = max(((f.double() - e.transpose(1, 2).double()).norm() / e.double().norm()).item() for f, e in zip(found, expected))
        if not difference < 1e-2:
            raise RuntimeError(f"head_dim {dim} length {length}: differs from cuDNN by {difference}")
        return dict(head_dim=dim, causal=causal, length=length, difference=difference, forward_kernel=ours.kernel, backward_kernel=back.kernel,
                    forward_ms=milliseconds(ours.run), backward_ms=milliseconds(back.run), cudnn_forward_ms=milliseconds(sdpa),
                    cudnn_backward_ms=milliseconds(gradients))


DISTANCE = "q_idx - kv_idx"
BEHIND = f"max({DISTANCE}, 0)"
T5_BUCKET = f"where({BEHIND} < 16, {BEHIND}, min(16 + to_integer(log(to_real(max({BEHIND}, 1)) / 16.0) / 2.0794415 * 16.0), 31))"
WINDOW = f"({CAUSAL}) & ({DISTANCE} <= 1024)"
DOCUMENTS = f"({CAUSAL}) & (doc[q_idx] == doc[kv_idx])"
HEADS = "heads"
TRAINED = [  # name, mask, score_mod, trained parameters: fp32, or bf16 where their shape ends with that
    ("plain", CAUSAL, None, {}),
    ("ALiBi", CAUSAL, "score + to_real(kv_idx - q_idx) * exp2(-8.0 * to_real(head + 1) / 16.0)", {}),
    ("softcap 30", CAUSAL, "tanh(score / 30) * 30", {}),
    ("window 1024", WINDOW, None, {}),
    ("8 documents", DOCUMENTS, None, {}),
    ("relative bias, clamped at 128, trained", CAUSAL, f"score + t[head, clamp({DISTANCE}, -128, 128) + 128]", {"t": (HEADS, 257)}),
    ("relative bias, all distances, trained", CAUSAL, f"score + t[head, {DISTANCE} + 4095]", {"t": (HEADS, 8191)}),
    ("relative bias, T5 buckets, trained", CAUSAL, f"score + t[{T5_BUCKET}, head]", {"t": (32, HEADS)}),
    ("bias per head, trained", CAUSAL, "score + t[head]", {"t": (HEADS,)}),
    ("gate per head, trained", CAUSAL, "score * t[head]", {"t": (HEADS,)}),
    ("gate per query, trained", CAUSAL, "score * t[head, q_idx]", {"t": (HEADS, 4096)}),
    ("bias per key, trained", CAUSAL, "score + t[kv_idx]", {"t": (4096,)}),
    ("ALiBi slopes, trained", CAUSAL, "score + t[head] * to_real(kv_idx - q_idx)", {"t": (HEADS,)}),
    ("softcap about 30, trained", CAUSAL, "tanh(score / (30 * t[0])) * (30 * t[0])", {"t": (1,)}),
    ("softcap about 1, trained", CAUSAL, "tanh(score / t[0]) * t[0]", {"t": (1,)}),
    ("two parameters, trained", CAUSAL, f"score * t[head] + u[clamp({DISTANCE}, -128, 128) + 128]", {"t": (HEADS,), "u": (257,)}),
    ("full bias (H, S, S) in bf16, trained", CAUSAL, "score + t[head, q_idx, kv_idx]", {"t": (HEADS, 4096, 4096, "bf16")}),
    ("full bias (H, S, S) in fp32, trained", CAUSAL, "score + t[head, q_idx, kv_idx]", {"t": (HEADS, 4096, 4096)}),
]


def trained_case(library, dim, name, mask, score, parameters):
    """A row and the plain pass, in turns: clocks differ from one minute to the next. `short`: turns of 30 ms, in which neither changes them much."""
    import torch
    heads = 1024 // dim
    forward, backward = tensors(4, 4096, heads, dim)
    params = []
    for p, shape in parameters.items():
        shape, dtype = (shape[:-1], torch.bfloat16) if shape[-1] == "bf16" else (shape, torch.float32)
        shape = tuple(heads if size == HEADS else size for size in shape)
        param = torch.rand(*shape, device="cuda", dtype=dtype) + 0.5
        params.append((f"{p}: real[{', '.join(map(str, shape))}]", param, torch.empty_like(param)))
    if "doc" in mask:
        params.append(("doc: integer[4096]", (torch.arange(4096, device="cuda") // 512).int(), None))
    ours = Plan(library, False, mask, score, [(d, t, None) for d, t, _ in params], **forward)
    back = Plan(library, True, mask, score, params, **forward, **backward)
    ours.run()
    back.run()
    runs = [dict(plain_forward_ms=Plan(library, False, CAUSAL, **forward).run, forward_ms=ours.run),
            dict(plain_backward_ms=Plan(library, True, CAUSAL, **forward, **backward).run, backward_ms=back.run)]
    def in_turns(turns, **options):
        times = {key: [] for pair in runs for key in pair}
        for pair, turn in itertools.product(runs, range(turns)):  # to and fro, so that each comes after the same work
            for key, call in list(pair.items())[::-1 if turn % 2 else 1]:
                times[key].append(milliseconds(call, **options))
        return {key: statistics.median(values) for key, values in times.items()}
    return dict(name=name, head_dim=dim, mask=mask, score_mod=score, forward_kernel=ours.kernel, backward_kernel=back.kernel,
                **in_turns(4, repeat=30), short=in_turns(6, repeat=15, warmup=15))


def run(options):
    import torch
    library = Library(options.library)
    result = {}
    if options.part and os.path.exists(options.out):
        with open(options.out) as file:
            result = json.load(file)
    facts = dict(device=torch.cuda.get_device_name(), torch=torch.__version__, cudnn=torch.backends.cudnn.version(), commit=options.commit,
                 command="python bench/gpu_grid.py " + " ".join(sys.argv[1:]))
    cases = dict(plain=(plain_case, list(itertools.product(HEAD_DIMS, (False, True), LENGTHS))),
                 trained=(trained_case, [(dim, *case) for dim in HEAD_DIMS for case in TRAINED]))
    for part in [options.part] if options.part else cases:
        measure, problems = cases[part]
        result[part] = dict(facts, rows=[])
        for problem in problems:
            result[part]["rows"].append(measure(library, *problem))
            write(options.out, result)  # after each row: a run that is cut short keeps what it has


def write(path, result):
    with open(path + ".new", "w") as file:
        json.dump(result, file, indent=1)
    os.replace(path + ".new", path)


def tflops(row, key, factor):
    operations = 4 * 16384 * row["length"] * 2048 / (2 if row["causal"] else 1)
    return factor * operations / row[key] * 1e-9


def mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def tables(options):
    with open(options.results) as file:
        result = json.load(file)
    plain, trained = result["plain"], result["trained"]
    lines = [f"{plain['device']}, commit `{plain['commit']}`, cuDNN {plain['cudnn']} through torch {plain['torch']}. TFLOP/s, foveal / cuDNN:", "",
             "| head dim, mask, pass | " + " | ".join(map(str, LENGTHS)) + " | ratio of means |", "|---|" + "---|" * (len(LENGTHS) + 1)]
    for dim, causal in itertools.product(HEAD_DIMS, (False, True)):
        rows = [r for r in plain["rows"] if r["head_dim"] == dim and r["causal"] == causal]
        for name, factor in (("forward", 1.0), ("backward", 2.5)):
            pairs = [(tflops(r, f"{name}_ms", factor), tflops(r, f"cudnn_{name}_ms", factor)) for r in rows]
            cells = " | ".join(f"{a:.0f} / {b:.0f}" for a, b in pairs)
            lines.append(f"| {dim} {'causal' if causal else 'full'} {name} | {cells} | {mean(a / b for a, b in pairs):.2f} |")
    for dim, rows in itertools.groupby(trained["rows"], key=lambda row: row.get("head_dim", 64)):
        lines += ["", f"{trained['device']}, commit `{trained['commit']}`. B4 H{1024 // dim} S4096 D{dim}, causal; ms, and times the plain pass, each after 100 ms "
                  "of itself; then the same in turns of 30 ms:", "", "| score | forward | backward | forward, short turns | backward, short turns |",
                  "|---|---|---|---|---|"]
        for row in rows:
            cells = [f"{times[key]:.2f} ({times[key] / times['plain_' + key]:.2f})" for times in (row, row["short"]) for key in ("forward_ms", "backward_ms")]
            lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    write_between(options.page, "tables", lines)


def write_between(path, mark, lines):
    """Replaces what stands between <!-- mark --> and <!-- end of mark --> of a page."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    with open(path) as file:
        page = file.read()
    head, tail = page[: page.index(begin) + len(begin)], page[page.index(end):]
    with open(path, "w") as file:
        file.write(head + "\n" + "\n".join(lines) + "\n" + tail)


def command_line(description, run, tables, parts=()):
    """`run` measures and writes a result file, `tables` writes it into a page."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("run")
    verb.add_argument("--library", required=True)
    verb.add_argument("--commit", required=True)
    verb.add_argument("--out", required=True)
    if parts:
        verb.add_argument("--part", choices=parts, help="measure this part only and keep the rest of the file")
    verb.set_defaults(act=run)
    verb = verbs.add_parser("tables")
    verb.add_argument("results")
    verb.add_argument("page")
    verb.set_defaults(act=tables)
    options = parser.parse_args()
    options.act(options)


if __name__ == "__main__":
    command_line(__doc__, run, tables, parts=("plain", "trained"))
