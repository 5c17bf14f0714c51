"""torch, transformers and JAX are optional: without them their tests are left out, and said so."""

import ast
import importlib.util
import os
import pathlib
import sys

import pytest

# Tests compile thousands of small programs that each run once: XLA need not make them fast. Four devices are for the tests of sharding.
FAST_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ["XLA_FLAGS"] = f"{FAST_TO_COMPILE} {os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")  # of the references: no tf32 on GPUs
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would keep three quarters of a GPU that torch's tests use, too
sys.path.insert(0, str(pathlib.Path(__file__).parent))

OPTIONAL = ("torch", "transformers", "jax")
INDIRECT = {"test_examples.py": {"torch"}, "test_bench.py": {"torch"}, "test_transformers.py": {"torch", "transformers"}}


def needs(path):
    """The optional packages that a file imports before anything else."""
    modules = INDIRECT.get(path.name, set()).copy()
    for node in ast.parse(path.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules.update(part for name in names for part in name.split(".") if part in OPTIONAL)  # foveal.torch needs torch, too
    return modules


missing = {name for name in OPTIONAL if importlib.util.find_spec(name) is None}
collect_ignore = [path.name for path in sorted(pathlib.Path(__file__).parent.glob("test_*.py")) if needs(path) & missing]


def pytest_configure(config):
    """FOVEAL_TEST_DEVICE=cuda: tensors that tests make without a word about the device lie there. Tests that say cpu keep it."""
    if device := os.environ.get("FOVEAL_TEST_DEVICE"):
        import torch

        torch.set_default_device(device)


def pytest_report_header(config):
    return f"left out, their packages are not installed: {', '.join(collect_ignore)}" if collect_ignore else None


@pytest.fixture
def jax_on_cpu():
    """JAX's default device is a CPU, also where it has a GPU: of tests over meshes of CPUs, and of what only their values can tell."""
    import jax

    with jax.default_device(jax.devices("cpu")[0]):
        yield
