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


def fields(node, source):
    """The fields of a class as they stand, with their comments."""
    lines = source.read_text().splitlines()
    found = [member for member in node.body if isinstance(member, ast.AnnAssign)] if isinstance(node, ast.ClassDef) else []
    return [lines[member.lineno - 1] for member in found if not member.target.id.startswith("_")]


def entry(node, name, level, source):
    text = ast.get_docstring(node)
    if not text:
        return []
    lines = ["#" * level + f" {name}", "", "```py", textwrap.fill(signature(node), 110, subsequent_indent="    ")]
    lines += [*fields(node, source), "```", "", *prose(text), ""]
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                lines += entry(member, f"{name}.{member.name}", level + 1, source)
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


def public(path):
    """The names in a package's __all__."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            return set(ast.literal_eval(node.value))
    sys.exit(f"{path}: no __all__")


def exported(path):
    """name: file, of what a package imports from its own modules, in the order in which it does."""
    names = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names.update({alias.name: path.parent / f"{node.module or alias.name}.py" for alias in node.names})
    return names


def of_extension(name, text):
    """(signature, meaning) of what the extension has under this name, as this text binds it; an attribute has no meaning. None: it does not."""
    literal = r'"((?:[^"\\]|\\.)*)"'
    if found := re.search(rf'nb::class_<\w+>[\w ]*\(m, "{name}", {literal}', text):
        return name, found[1]
    if found := re.search(rf'nb::exception<[\w:]+>\(m, "{name}".*?__doc__"\) =\s*{literal}', text, re.DOTALL):
        return name, found[1]
    if found := re.search(rf'\b(unary|function2)\("{name}",.*?{literal}\);', text):
        return f"{name}({'x' if found[1] == 'unary' else 'a, b'})", found[2]
    if found := re.search(rf'm\.def\(\s*"{name}",.*?{literal}\);', text, re.DOTALL):
        arguments = re.findall(r'nb::arg."(.+?)"', found[0])
        return f"{name}({', '.join(arguments)})", found[1]
    return (name, "") if re.search(rf'm\.attr\("{name}"\)', text) else None


def extension(package, names):
    """Tables of these names of the extension: the score language, whose symbols have no text of their own, and the others."""
    sources = {path.name: path.read_text() for path in (PACKAGE.parent / "src").glob("*.cpp")}
    score = sources.pop("score.cpp")
    language = {name: row for name in names if (row := of_extension(name, score))}
    others = {name: of_extension(name, "\n".join(sources.values())) for name in names if name not in language}
    if missing := [name for name, row in others.items() if row is None]:
        sys.exit(f"{package}: python/src says nothing of {', '.join(missing)}")
    symbols = ", ".join(f"`{package}.{name}`" for name, row in language.items() if not row[1])
    lines = ["### Expressions", "", f"The symbols of [the score language](../score-language.md) are {symbols}. Functions take expressions and numbers.", ""]
    for rows in (language, others):
        lines += ["| name | meaning |", "|---|---|"]
        lines += [f"| `{package}.{name}` | {meaning} |" for name, meaning in rows.values() if meaning]
        lines += [""] if rows is others else ["", "### Errors, threads and targets", ""]
    return lines


def python():
    lines = ["# Python reference", "", "Every public name, from the docstrings. `foveal` itself works on all arrays with DLPack; `foveal.torch` and `foveal.jax` add"]
    lines += ["gradients. [From Python](../python.md) shows how to use them.", ""]
    for package in ("foveal", "foveal.torch", "foveal.jax", "foveal.transformers"):
        path = PACKAGE.parent / package.replace(".", "/") / "__init__.py"
        lines += [f"## {package}", ""]
        sources = {**exported(path), **{name: path for name in definitions(path)}}
        compiled = []
        for name in sorted(public(path) - {"__version__"}, key=lambda name: (name == sources[name].stem, [*sources].index(name))):
            source = sources[name]
            if source.stem == "_core":
                compiled.append(name)
            elif name == source.stem and name not in definitions(source):
                for function in (name for name in definitions(source) if not name.startswith("_")):
                    lines += entry(definitions(source)[function], f"{package}.{source.stem}.{function}", 3, source)
            else:
                lines += entry(definitions(source)[name], f"{package}.{name}", 3, source) or sys.exit(f"{package}.{name}: no docstring")
        if compiled:
            lines += extension(package, compiled)
    return "\n".join(lines) + "\n"


def header(name, language):
    """A header as sections: its opening comment as text, the rest as code."""
    lines = (ROOT / "include/foveal" / name).read_text().splitlines()
    return [f"## {name}", "", f"```{'cpp' if language == 'cpp' else 'c'}", *lines, "```", ""]


def pages():
    cpp = ["# C++ reference", "", "The public headers; each declaration has its documentation beside it. `<foveal/foveal.h>` includes them all but `<foveal/dist.h>`.", ""]
    listed = ("attention.h", "part.h", "score.h", "masks.h", "tensor.h", "error.h", "dist.h")
    if missing := {path.name for path in (ROOT / "include/foveal").glob("*.h")} - {*listed, "foveal.h", "foveal_c.h", "export.h"}:
        sys.exit(f"no reference page has these headers: {', '.join(sorted(missing))}")
    for path in listed:
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
