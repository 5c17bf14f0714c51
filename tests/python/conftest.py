"""torch, transformers and JAX are optional: without them their tests are left out, and said so."""

import importlib.util
import os
import pathlib
import sys

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"  # for the tests of sharding
sys.path.insert(0, str(pathlib.Path(__file__).parent))

collect_ignore = []
if importlib.util.find_spec("torch") is None:
    collect_ignore += ["test_block_mask.py", "test_derivatives.py", "test_dropout.py", "test_flex.py", "test_packed.py", "test_routing.py", "test_sdpa.py"]
    collect_ignore += ["test_torch.py", "test_torch_functions.py", "test_trace_guards.py", "test_examples.py", "test_bench.py"]
if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
    collect_ignore += ["test_transformers.py"]
if importlib.util.find_spec("jax") is None:
    collect_ignore += ["test_jax.py", "test_jax_functions.py", "test_jax_sharding.py", "test_jax_derivatives.py", "test_jax_generated.py"]


def pytest_report_header(config):
    return f"left out, their packages are not installed: {', '.join(collect_ignore)}" if collect_ignore else None
