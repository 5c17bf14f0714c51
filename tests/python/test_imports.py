"""The shape of the package: no two modules import each other, be it by way of others, within functions or for types alone; functions are short."""

import ast
import graphlib
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parents[2] / "python" / "foveal"


def import_graph(package):
    """The modules of a package -> those that they import, wherever in the file."""
    files = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for module, path in files.items():
        parents = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = parents[: len(parents) - node.level + 1] if node.level else []
                whole = ".".join([*base, *([node.module] if node.module else [])])
                names = {f"{whole}.{alias.name}" for alias in node.names}
                found |= names if node.module is None else names & files.keys() or {whole}
        graph[module] = found & files.keys()
    return graph


def circle(graph):
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_modules_import_without_circles():
    graph = import_graph(PACKAGE)
    assert "foveal.torch.tracing.symbol" in graph["foveal.torch.tracing.tracer"] and "foveal.torch" in graph["foveal.api"]  # the latter within a function
    assert circle(graph) == []


def long_functions(text, most=80):
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [node.name for node in functions if node.end_lineno - node.lineno >= most]


def test_no_function_is_long():
    assert not {str(path): found for path in PACKAGE.rglob("*.py") if (found := long_functions(path.read_text()))}
    body = "    pass\n" * 79
    assert long_functions(f"def f():\n{body}") == [] and long_functions(f"def f():\n{body}    pass\n") == ["f"]


@pytest.mark.parametrize("back", ["from . import a", "from .a import x", "import package.a", "def f():\n    from .a import x", "if TYPE_CHECKING:\n    from .a import x"])
def test_a_circle_is_found(back, tmp_path):
    files = {"__init__.py": "", "a.py": "from .b import y", "b.py": "import os\nfrom . import c", "c.py": back}
    (tmp_path / "package").mkdir()
    for name, text in files.items():
        (tmp_path / "package" / name).write_text(text)
    assert set(circle(import_graph(tmp_path / "package"))) == {"package.a", "package.b", "package.c"}
