#!/usr/bin/env python3
"""Training steps of transformers models with different attention: time and memory of forward, backward and an optimizer step.

usage: transformers_steps.py [--models llama,gemma2,t5,gpt2] [--attention eager,sdpa,flex,foveal] [--seqlen N] [--batch N] [--steps N]
                             [--device cuda|cpu] [--dtype bf16|f32] [--tiny] [--output FILE]

Models are made from their configurations with random weights: nothing is downloaded. Each pair of a model and an attention runs in a process of its
own, so that memory peaks do not mix and a failure is a row that says why. The first steps are not counted (compilation, caches); the time is the
median of the others. Losses of equal data and weights are recorded, too: they must agree. --tiny makes models of two narrow layers, for trying the
script itself.

The output is one JSON file: {"device", "torch", "transformers", "commit", "command", "rows": [{"model", "attention", "ms", "peak_bytes", "losses"} or
{"model", "attention", "failed"}]}.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ("llama", "gemma2", "t5", "gpt2")
ATTENTION = ("eager", "sdpa", "flex", "foveal")


def make(model, attention, tiny, seqlen):
    """A model of the size that its name is known by (Llama 3.2 1B, Gemma 2 2B with 8 of its layers, T5-base, GPT-2 124M), with `attention`."""
    import transformers as hf

    name = {"flex": "flex_attention"}.get(attention, attention)
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
        config, cls = hf.GPT2Config(**(size if tiny else whole), n_positions=seqlen, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=0, eos_token_id=0), hf.GPT2LMHeadModel
    config._attn_implementation = name
    config.use_cache = False
    return cls(config)


def measure(options):
    """One model with one attention, in this process; prints a row."""
    import torch

    if options.attention == "foveal":
        import foveal.transformers

        foveal.transformers.register()
    torch.manual_seed(0)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[options.dtype]
    model = make(options.model, options.attention, options.tiny, options.seqlen).to(options.device, dtype).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.config.vocab_size
    cuda = options.device == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times, losses = [], []
    for step in range(options.warmup + options.steps):
        ids = torch.randint(0, vocabulary, (options.batch, options.seqlen), generator=generator).to(options.device)
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
    if cuda:
        peak = torch.cuda.max_memory_allocated()
    else:
        import resource

        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("ROW " + json.dumps({"model": options.model, "attention": options.attention, "ms": statistics.median(times), "peak_bytes": peak, "losses": losses}))


def reason(text):
    """What a failed process said last that names an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "error" in line]
    return (named or lines or ["no output"])[-1][:300]


def commit():
    """What the package was built from: FOVEAL_COMMIT where it is not this checkout."""
    if named := os.environ.get("FOVEAL_COMMIT"):
        return named
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return found.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--attention", default=",".join(ATTENTION))
    parser.add_argument("--seqlen", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10, help="that are counted")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each row")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("transformers-steps.json"))
    parser.add_argument("--model", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model:
        return measure(options)
    unknown = set(options.models.split(",")) - set(MODELS) | set(options.attention.split(",")) - set(ATTENTION)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; models: {', '.join(MODELS)}; attention: {', '.join(ATTENTION)}")

    import torch
    import transformers

    result = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit(),
        "command": " ".join(["python", "bench/transformers_steps.py", *sys.argv[1:]]),
        "seqlen": options.seqlen,
        "batch": options.batch,
        "dtype": options.dtype,
        "rows": [],
    }
    same = [f"--{name}={getattr(options, name)}" for name in ("seqlen", "batch", "steps", "warmup", "device", "dtype")] + ["--tiny"] * options.tiny
    print(f"{'model':<8} {'attention':<9} {'ms':>9} {'GiB':>7}   loss")
    for model in options.models.split(","):
        for attention in options.attention.split(","):
            try:
                done = subprocess.run([sys.executable, __file__, f"--model={model}", f"--attention={attention}", *same], capture_output=True, text=True, timeout=options.timeout)
                rows = [json.loads(line.removeprefix("ROW ")) for line in done.stdout.splitlines() if line.startswith("ROW ")]
                row = rows[0] if rows else {"model": model, "attention": attention, "failed": reason(done.stderr)}
            except subprocess.TimeoutExpired:
                row = {"model": model, "attention": attention, "failed": f"more than {options.timeout:g} s"}
            result["rows"].append(row)
            if "failed" in row:
                print(f"{model:<8} {attention:<9} {row['failed']}", flush=True)
            else:
                print(f"{model:<8} {attention:<9} {row['ms']:>9.1f} {row['peak_bytes'] / 2**30:>7.2f}   {row['losses'][-1]:.4f}", flush=True)
            # Row by row, so that a run that is cut short keeps what it has.
            new = options.output.with_name(options.output.name + ".new")
            new.write_text(json.dumps(result, indent=1) + "\n")
            new.replace(options.output)


if __name__ == "__main__":
    main()
