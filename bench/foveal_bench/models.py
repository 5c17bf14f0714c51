"""Training steps of transformers models with different attention: time and memory of forward, backward and an optimizer step. Models are made from their
configurations with random weights: nothing is downloaded. Each pair of a model and an attention runs in a process of its own, so that memory peaks do not mix
and a failure is a row that says why. The first steps are not counted (compilation, caches). Losses of equal data and weights must agree.

    foveal-bench models --models t5,llama --seqlen 2048
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import resource
import statistics
import subprocess
import time
from typing import Any

from . import machine
from .progress import progress
from .results import Rows

MODELS = ("llama", "gemma2", "t5", "gpt2")
ATTENTION = ("eager", "sdpa", "flex", "foveal")


def make(model: str, attention: str, tiny: bool, seqlen: int) -> Any:
    """A model of the size that its name is known by (Llama 3.2 1B, Gemma 2 2B with 8 of its layers, T5-base, GPT-2 124M), with `attention`."""
    import transformers

    hf: Any = transformers
    size: dict[str, Any]
    whole: dict[str, Any]
    if model == "llama":
        size = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=256)
        whole = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, vocab_size=32000)
        config, cls = hf.LlamaConfig(**(size if tiny else whole), max_position_embeddings=seqlen, attention_dropout=0.0), hf.LlamaForCausalLM
    elif model == "gemma2":
        size = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=256)
        whole = dict(hidden_size=2304, intermediate_size=9216, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=32000)
        config, cls = hf.Gemma2Config(**(size if tiny else whole), max_position_embeddings=seqlen), hf.Gemma2ForCausalLM
    elif model == "t5":
        size = dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=256)
        whole = dict(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, vocab_size=32128)
        config, cls = hf.T5Config(**(size if tiny else whole), dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0), hf.T5ForConditionalGeneration
    else:
        size = dict(n_embd=64, n_layer=2, n_head=4, vocab_size=256)
        whole = dict(n_embd=768, n_layer=12, n_head=12, vocab_size=50257)
        off = dict(attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=0, eos_token_id=0)
        config, cls = hf.GPT2Config(**(size if tiny else whole), n_positions=seqlen, **off), hf.GPT2LMHeadModel
    config._attn_implementation = "flex_attention" if attention == "flex" else attention
    config.use_cache = False
    return cls(config)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One model with one attention, in this process."""
    import torch

    if options.attention == "foveal":
        import foveal.transformers

        foveal.transformers.register()
    torch.manual_seed(0)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[options.dtype]
    with torch.device(options.device):  # weights are drawn there: a CPU takes many seconds
        model = make(options.models, options.attention, options.tiny, options.seqlen).to(dtype).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    cuda = options.device == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times, losses = [], []
    for step in range(options.warmup + options.steps):
        ids = torch.randint(0, model.config.vocab_size, (options.batch, options.seqlen), generator=generator).to(options.device)
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if cuda:
            torch.cuda.synchronize()
        if step >= options.warmup:
            times.append(1e3 * (time.perf_counter() - start))
        losses.append(loss.item())
    peak = torch.cuda.max_memory_allocated() if cuda else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"ms": statistics.median(times), "peak_bytes": peak, "losses": losses}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--attention", default=",".join(ATTENTION), help="default: %(default)s")
    parser.add_argument("--seqlen", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10, help="that are counted")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--tiny", action="store_true", help="models of two narrow layers, for trying the verb itself")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each row")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)


def row(options: argparse.Namespace, model: str, attention: str) -> dict[str, Any]:
    same = [f"--{name}={getattr(options, name)}" for name in ("seqlen", "batch", "steps", "warmup", "device", "dtype")] + ["--tiny"] * options.tiny
    command = machine.again("models", "--one", f"--models={model}", f"--attention={attention}", *same)
    try:
        done = subprocess.run(**command, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return {"refused": f"more than {options.timeout:g} s"}
    rows = [json.loads(line.removeprefix("ROW ")) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    return dict(rows[0]) if rows else {"refused": machine.reason(done.stderr)}


def main(options: argparse.Namespace) -> None:
    if options.one:
        print("ROW " + json.dumps(measure(options)))
        return
    models, attentions = options.models.split(","), options.attention.split(",")
    if unknown := {*models} - {*MODELS} | {*attentions} - {*ATTENTION}:
        raise SystemExit(f"foveal-bench models: unknown: {', '.join(sorted(unknown))}; models: {', '.join(MODELS)}; attention: {', '.join(ATTENTION)}")
    import torch  # noqa: F401, whose version is part of the origin

    rows = Rows(options.output, machine.describe(options.device, transformers=importlib.metadata.version("transformers")))
    for model, attention in progress([(model, attention) for model in models for attention in attentions]):
        case = f"{model}{' tiny' if options.tiny else ''} {options.dtype} b{options.batch} s{options.seqlen}"
        rows.add("models", case, contender=attention, **row(options, model, attention))
