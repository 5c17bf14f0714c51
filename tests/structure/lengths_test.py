#!/usr/bin/env python3
"""Does tools/check_functions.py see every form of a function in full, and long comments? Each case is a signature, before a body of five lines."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from check_functions import functions, long_comments  # noqa: E402

CASES = [
    "int f(int a)",
    "template <class A, int n = (3 > 2)>\nauto f(A a) -> decltype(a)",
    "template <class A>\n  requires requires(A a) { a.x(); }\nvoid f(A a)",
    "S::S(int a) : a_{a}",
    "S::S(int a) : a_{a}, b_(a)",
    "S::S(int a) : b_(a), a_{a}",
    "int S::operator()(int a) const noexcept",
    "bool operator==(const A& a, const B& b)",
    "bool operator<(const A& a, const B& b)",
    "const auto f = [](int a)",
    "static const std::vector<T> f = []",
    "[[nodiscard]] int f()",
    "extern \"C\" int f()",
    "int f(A a = {}, B b = {1, 2})",
    "int f(int a) try",
    "void f() noexcept(noexcept(g()))",
    "std::pair<int, int> f(int a) const",
]
wrong = 0
for case in CASES:
    text = case + " {\n" + "  x();\n" * 5 + "}\n"
    whole = text.count("\n")
    if max((last - first + 1 for first, last, head in functions(text)), default=0) < min(whole, 7):
        print(f"not counted in full: {case}")
        wrong += 1
for case in ("struct S", "namespace n", "enum class E : int", "const int rows[] ="):
    if list(functions(case + " {\n  1\n};\n")):
        print(f"counted, but no function: {case}")
        wrong += 1
if [number for number, columns in long_comments(["int a;" + 140 * " ", "// " + 137 * "a", "// " + 138 * "a"])] != [3]:
    print("not refused: a comment of 141 columns, or refused: another line")
    wrong += 1
print(f"{len(CASES)} forms, {wrong} wrong")
sys.exit(1 if wrong else 0)
