#!/usr/bin/env python3
"""libfoveal.so exports the C functions of foveal_c.h and public C++ names with their type information, and nothing of the standard library or of the inside."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NM, LIBRARY = sys.argv[1:]
# What programs need to catch errors and to write transports of their own.
TYPES = {f"_ZT{kind}N6foveal{name}E" for kind in "ISV" for name in ("5Error", "4dist9Transport")}

listed = subprocess.run([NM, "-D", "--defined-only", LIBRARY], check=True, capture_output=True, text=True).stdout
exported = {line.split()[-1] for line in listed.splitlines()}
functions = set(re.findall(r"FOVEAL_API[^;()]*?\b(foveal_\w+)\(", (ROOT / "include/foveal/foveal_c.h").read_text()))
inside = "|".join(f"{len(name)}{name}" for name in [*[path.name for path in (ROOT / "src").iterdir() if path.name != "dist"], "scoring", "jit"])

wrong = [f"not exported: {name}" for name in sorted((functions | TYPES) - exported)]
for name in sorted(exported - functions - TYPES):
    if not re.match(r"_ZT?[ISV]?NK?6foveal", name) or "5State" in name or re.match(rf"_ZNK?6foveal({inside})\d", name):
        wrong.append(f"exported: {name}")
assert len(functions) > 20 and len(exported) > 150, "nothing was found"
sys.exit("\n".join(wrong) or 0)
