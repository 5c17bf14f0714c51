#!/usr/bin/env python3
"""Writes docs/reference/ from the docstrings: Python's by reading the sources, C++'s and C's by reading the headers.

usage: write_reference.py [--check]

--check writes nothing; it exits with 1 when a page is not what the sources make of it.
"""
import ast
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python/foveal"


def signature(node):
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"


def entry(node, name, level):
    text = ast.get_docstring(node)
    if not text:
        return []
    lines = ["#" * level + f" {name}", "", "```py", textwrap.fill(signature(node), 110, subsequent_indent="    "), "```", "", *prose(text), ""]
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                lines += entry(member, f"{name}.{member.name}", level + 1)
    return lines


def prose(text):
    """A docstring as Markdown: indented lines are code, `name: meaning` paragraphs become the items of a list."""
    lines, item = [], False
    for line in text.splitlines():
        code = re.match(r"(    )+\S", line)
        if not code:
            line = re.sub(r"(?<![`*])\*(?![* ])", r"\\*", line)
        if found := re.match(r"([a-z_]\w*(?:, [a-z_]\w*)*): (.*)", line):
            if lines and lines[-1] and not item:
                lines.append("")
            names, meaning = found.groups()
            lines.append(f"- {', '.join(f'`{name}`' for name in names.split(', '))}: {meaning}")
            item = True
        elif item and line and not code:
            lines.append(f"  {line}")
        else:
            item = False
            lines.append(line)
    return lines


def definitions(path):
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def exported(path):
    """name: file, of what a package imports from its own modules, in the order in which it does."""
    names = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module and node.module != "_core":
            target = path.parent / f"{node.module}.py"
            names.update({alias.name: target for alias in node.names if not alias.name.startswith("_")})
    return names if path.name == "__init__.py" else {}


def python():
    lines = ["# Python reference", "", "Every public function, from the docstrings. `foveal` itself works on all arrays with DLPack; `foveal.torch` and `foveal.jax` add"]
    lines += ["gradients. [From Python](../python.md) shows how to use them.", ""]
    modules = [("foveal", PACKAGE / "__init__.py"), ("foveal.torch", PACKAGE / "torch/__init__.py"), ("foveal.jax", PACKAGE / "jax/__init__.py")]
    for package, path in modules:
        lines += [f"## {package}", ""]
        own = {name: path for name in definitions(path) if not name.startswith("_")}
        for name, source in {**exported(path), **own}.items():
            node = definitions(source).get(name) if source.exists() else None
            if node is not None:
                lines += entry(node, f"{package}.{name}", 3)
    return "\n".join(lines) + "\n"


def header(name, language):
    """A header as sections: its opening comment as text, the rest as code."""
    lines = (ROOT / "include/foveal" / name).read_text().splitlines()
    return [f"## {name}", "", f"```{'cpp' if language == 'cpp' else 'c'}", *lines, "```", ""]


def pages():
    cpp = ["# C++ reference", "", "The public headers; each declaration has its documentation beside it. `<foveal/foveal.h>` includes them all.", ""]
    for path in ("attention.h", "part.h", "score.h", "masks.h", "tensor.h", "error.h"):
        cpp += header(path, "cpp")
    c = ["# C reference", "", "The header is the reference; [From C and C++](../start/c-and-cpp.md) shows its use.", ""]
    return {"python.md": python(), "cpp.md": "\n".join(cpp), "c.md": "\n".join(c + header("foveal_c.h", "c"))}


def main():
    for name, text in pages().items():
        path = ROOT / "docs/reference" / name
        if "--check" not in sys.argv[1:]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"docs/reference/{name} is stale: run ./dev docs")


if __name__ == "__main__":
    main()
