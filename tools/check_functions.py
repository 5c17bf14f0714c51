#!/usr/bin/env python3
"""Checks lengths: of functions in src/, at most 80 lines on the host, 120 in device code, counted from the first line of the signature; and of
lines with comments in include/, src/ and cli/, at most 140 columns, since clang-format leaves these as they are.

A longer function says why in its comment, in a sentence that begins with "Long:". Prints one line for each that says nothing and for each long
line, and exits with 1 if there is any. `--all N` prints every function of more than N lines instead.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOST, DEVICE, COLUMNS = 80, 120, 140
SUFFIXES = (".h", ".cpp", ".cuh")
HIDDEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.S | re.M)
NO_FUNCTION = re.compile(r"^(?:if|for|while|switch|else|do|try|catch|case|default|return|namespace|struct|class|union|enum)\b|=\s*$")
SIGNATURE = re.compile(r"[\w>&*~=!+<\-\]]\s*\([\s\S]*\)[^()]*$|\([\s\S]*\)\s*:\s*\w[\s\S]*$|\[[^\[\]]*\]$")
OPERATOR = re.compile(r"operator\s*[^\w\s]+")


def blank(match):
    return re.sub(r"[^\n]", " ", match[0])


def is_value(code, statement, at):
    """Whether the brace belongs to an initialiser inside a signature (`a_{a}`, `A a = {}` among parameters)."""
    before = code[statement:at]
    return before.count("(") > before.count(")") and "[" not in before or bool(re.search(r"[)\]]?\s*[:,]\s*\w+$", before) and "(" in before)


def functions(text):
    """(first line, last line, signature) of each function that has a body."""
    code = HIDDEN.sub(blank, text)
    opened, statement, inside = [], 0, 0
    for at, char in enumerate(code):
        if char == "{" and inside == 0 and is_value(code, statement, at):
            opened.append(None)
        elif char == "{":
            head = re.sub(r"^(?:template\s*<[^{}]*?>\s*(?=[\w:]))", "", code[statement:at].strip())
            head = re.sub(r"^(?:public|private|protected):\s*", "", head)
            is_function = inside == 0 and bool(SIGNATURE.search(head)) and not NO_FUNCTION.search(OPERATOR.sub("operator", head).split("(")[0].strip() or head)
            first = statement + len(code[statement:at]) - len(code[statement:at].lstrip())
            opened.append((is_function, first, " ".join(head.split())))
            inside += is_function
            statement = at + 1
        elif char == "}" and opened:
            body = opened.pop()
            if body is None:
                continue
            is_function, first, head = body
            inside -= is_function
            statement = at + 1
            if is_function:
                yield code.count("\n", 0, first) + 1, code.count("\n", 0, at) + 1, head
        elif char == ";":
            statement = at + 1


def long_comments(lines):
    """(number, columns) of each line with a comment that is too long."""
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS and "//" in line:
            yield number, len(line)


def sources(*folders):
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES)


def main():
    least = int(sys.argv[2]) if sys.argv[1:2] == ["--all"] else None
    wrong = count = 0
    for path in sources("src"):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for first, last, head in functions(text):
            count += 1
            limit = least if least is not None else DEVICE if "device" in path.parts else HOST
            size = last - first + 1
            above = first - 2
            while above >= 0 and lines[above].lstrip().startswith("//"):
                above -= 1
            if size <= limit or (least is None and "Long:" in "\n".join(lines[above + 1:first - 1])):
                continue
            print(f"{path.relative_to(ROOT)}:{first}: {size} lines: {head[:90]}")
            wrong += 1
    print(f"{count} functions, {wrong} too long")
    if least is not None:
        return 0
    long = 0
    for path in sources("include", "src", "cli"):
        for number, columns in long_comments(path.read_text(encoding="utf-8").splitlines()):
            print(f"{path.relative_to(ROOT)}:{number}: a comment to column {columns}; expected {COLUMNS} at most")
            long += 1
    print(f"{long} comments too long")
    return 1 if wrong or long else 0


if __name__ == "__main__":
    sys.exit(main())
