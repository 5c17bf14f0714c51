"""Context parallelism on several GPUs of one host: one process for each, NCCL between them, beside torch's own context_parallel.

    python bench/context_parallel.py --out results.jsonl [--gpus 2] [--cases causal,window] [--most-tokens 131072] [--seconds 100]

A line of JSON for each case: milliseconds on one GPU and on all, efficiency = one / (GPUs x all), torch's time on the same tensors, and the
largest difference from the result of one GPU. Times are medians of the slowest rank. No new case begins after --seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable

CASES: list[dict[str, Any]] = [
    {"name": "causal", "tokens": 32768, "heads": (16, 16), "mask": "causal()", "torch": True},
    {"name": "causal", "tokens": 131072, "heads": (16, 16), "mask": "causal()", "torch": True},
    {"name": "causal", "tokens": 8192, "heads": (16, 16), "mask": "causal()", "torch": True},
    {"name": "causal", "tokens": 32768, "heads": (32, 8), "mask": "causal()"},
    {"name": "window", "tokens": 131072, "heads": (16, 16), "mask": "causal() & window(4096)", "deal": "contiguous"},
    {"name": "table", "tokens": 32768, "heads": (16, 16), "mask": "causal()", "score": "score + rel[head, clamp(q_idx - kv_idx, 0, 1023)]"},
    {"name": "softcap", "tokens": 32768, "heads": (16, 16), "mask": "causal()", "score": "30 * tanh(score / 30)"},
    {"name": "alibi", "tokens": 32768, "heads": (16, 16), "mask": "causal()", "score": "score - 0.01 * (head + 1) * to_real(q_idx - kv_idx)"},
    {"name": "causal", "tokens": 131072, "heads": (32, 8), "mask": "causal()"},
    {"name": "causal", "tokens": 8192, "heads": (32, 8), "mask": "causal()"},
    {"name": "causal", "tokens": 1048576, "heads": (32, 8), "mask": "causal()", "alone": False},
]
HEAD_DIM = 128


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--cases", default="", help="names, with commas between")
    parser.add_argument("--most-tokens", type=int, default=131072)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--multiprocessors", type=int, default=16, help="that carry NCCL's transfers at most")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def launch(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--store", os.path.join(folder, "store")]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(options.gpus)]
        return max(abs(rank.wait()) for rank in ranks)


class Bench:
    def __init__(self, options: argparse.Namespace):
        import torch
        import torch.distributed as distributed

        self.torch, self.distributed, self.options = torch, distributed, options
        torch.cuda.set_device(options.rank)
        self.device = torch.device("cuda", options.rank)
        from datetime import timedelta

        distributed.init_process_group(
            "nccl",
            init_method=f"file://{options.store}",
            rank=options.rank,
            world_size=options.gpus,
            timeout=timedelta(seconds=90),
            device_id=self.device,
        )
        self.group = distributed.group.WORLD

    def write(self, line: dict[str, Any]) -> None:
        if self.options.rank == 0:
            with open(self.options.out, "a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)

    def milliseconds(self, run: Callable[[], Any], budget_ms: float = 1500.0) -> float:
        """Of the slowest rank, a median."""
        torch = self.torch

        def once() -> float:
            self.distributed.barrier()
            torch.cuda.synchronize()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            taken = torch.tensor([begin.elapsed_time(end)], device=self.device)
            self.distributed.all_reduce(taken, op=self.distributed.ReduceOp.MAX)
            return float(taken.item())

        run()
        first = once()
        count = int(min(25, max(3, budget_ms / max(first, 0.05))))
        return sorted(once() for _ in range(count))[count // 2]

    def tensors(self, case: dict[str, Any]) -> list[Any]:
        torch = self.torch
        generator = torch.Generator(device=self.device).manual_seed(7)  # the same on every rank
        heads_q, heads_kv = case["heads"]
        shapes = [(1, case["tokens"], heads, HEAD_DIM) for heads in (heads_q, heads_kv, heads_kv, heads_q)]
        return [torch.randn(shape, generator=generator, device=self.device, dtype=torch.bfloat16) for shape in shapes]

    def foveal(self, case: dict[str, Any]) -> dict[str, Any]:
        torch = self.torch
        import foveal.torch as door

        q, k, v, dout = self.tensors(case)
        params = {}
        if case["name"] == "table":
            generator = torch.Generator(device=self.device).manual_seed(9)
            params = {"rel": torch.randn(case["heads"][0], 1024, generator=generator, device=self.device, requires_grad=True)}
        attend = lambda q, k, v: door.attention(q, k, v, case.get("score"), case["mask"], params=params)  # noqa: E731
        result: dict[str, Any] = {}

        def both(q: Any, k: Any, v: Any, dout: Any) -> Any:
            for t in (q, k, v, *params.values()):
                t.grad = None
            out = attend(q, k, v)
            out.backward(dout)
            return out

        wanted = None
        if case.get("alone", True):
            with torch.no_grad():
                result["one_forward_ms"] = self.milliseconds(lambda: attend(q, k, v))
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            result["one_both_ms"] = self.milliseconds(lambda: both(*leaves, dout))
            wanted = [both(*leaves, dout).detach(), *(t.grad for t in leaves)]
            wanted_params = {name: t.grad for name, t in params.items()}
            del leaves
        deal = case.get("deal", "zigzag")
        with door.context_parallel(
            self.group, case["tokens"], deal=deal, time_limit=60, multiprocessors=self.options.multiprocessors
        ) as context:
            mine = [context.shard(t) for t in (q, k, v, dout)]
            del q, k, v, dout
            with torch.no_grad():
                result["forward_ms"] = self.milliseconds(lambda: attend(*mine[:3]))
            leaves = [t.detach().requires_grad_() for t in mine[:3]]
            result["both_ms"] = self.milliseconds(lambda: both(*leaves, mine[3]))
            if wanted is not None:
                found = [both(*leaves, mine[3]).detach(), *(t.grad for t in leaves)]
                for name, whole, part in zip(("out", "dq", "dk", "dv"), wanted, found):
                    result[f"difference_{name}"] = round(float((context.shard(whole).float() - part.float()).abs().max() / whole.float().abs().max()), 6)
                for name, gradient in wanted_params.items():
                    result[f"difference_{name}"] = round(float((gradient - params[name].grad).abs().max() / gradient.abs().max()), 6)
            result["memory_gb"] = round((torch.cuda.get_device_properties(0).total_memory - torch.cuda.mem_get_info()[0]) / 1e9, 2)
        return result

    def torchs(self, case: dict[str, Any]) -> dict[str, Any]:
        torch = self.torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.nn.attention import SDPBackend, sdpa_kernel

        mesh = init_device_mesh("cuda", (self.options.gpus,))
        q, k, v, dout = (t.transpose(1, 2).contiguous() for t in self.tensors(case))
        result = {}
        attend = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731

        def both() -> None:
            q.grad = k.grad = v.grad = None
            attend().backward(dout)

        buffers = [q, k, v, dout]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers)):
                with torch.no_grad():
                    result["torch_forward_ms"] = self.milliseconds(attend)
                for t in (q, k, v):
                    t.requires_grad_()
                result["torch_both_ms"] = self.milliseconds(both)
        return result

    def run(self) -> None:
        torch, options = self.torch, self.options
        begin = time.monotonic()
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        self.write(
            {"kind": "machine", "gpu": torch.cuda.get_device_name(), "gpus": options.gpus, "torch": torch.__version__, "nccl": nccl,
             "multiprocessors": options.multiprocessors, "commit": os.environ.get("FOVEAL_COMMIT", "")}
        )
        chosen = options.cases.split(",") if options.cases else []
        for case in CASES:
            if case["tokens"] > options.most_tokens or (chosen and case["name"] not in chosen):
                continue
            elapsed = torch.tensor([time.monotonic() - begin], device=self.device)
            self.distributed.all_reduce(elapsed, op=self.distributed.ReduceOp.MAX)
            if float(elapsed.item()) > options.seconds:
                break
            line: dict[str, Any] = {"kind": "case", "name": case["name"], "tokens": case["tokens"], "heads": list(case["heads"])}
            line |= self.foveal(case)
            for name in ("forward", "both"):
                if f"one_{name}_ms" in line:
                    line[f"efficiency_{name}"] = round(line[f"one_{name}_ms"] / options.gpus / line[f"{name}_ms"], 4)
            if case.get("torch") and not options.no_torch:
                try:
                    line |= self.torchs(case)
                except Exception as error:  # a rival that fails is no failure of the measurement
                    line["torch_error"] = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            line["seconds"] = round(time.monotonic() - begin, 1)
            self.write(line)
            torch.cuda.empty_cache()
        self.distributed.destroy_process_group()


def main() -> int:
    options = arguments()
    if options.rank < 0:
        return launch(options)
    Bench(options).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
