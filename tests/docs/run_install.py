#!/usr/bin/env python3
"""The commands with which the documentation installs foveal and builds programs on it, taken from the pages; and every other command there has somebody
who runs it.

usage: run_install.py BUILD SCRATCH

BUILD: a folder that is built already: the pages' own folder and prefix are put beside it, so that nothing is compiled twice. Configuring is done as it is
written, in a fresh folder; what a page says of find_package, add_subdirectory and pkg-config is done with the programs of that page.
"""
import collections
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import doc_blocks  # noqa: E402

PAGE = ROOT / "docs/start/c-and-cpp.md"
LLMC = ROOT / "examples/llmc"

# A command as pages write it: the file, and the words in it, that show that CI runs it.
ELSEWHERE = {
    "python3 -m venv": ("tests/docs/run_start.py", "python3 -m venv"),
    "pip install .": ("dev", ".venv/bin/pip install"),
    "pip install '.[numpy]'": ("dev", ".venv/bin/pip install"),
    "pip install -e './bench[progress]'": ("tests/docs/run_start.py", "pip install"),
    "./dev test": (".ci/run", "./dev test"),
    "./dev demo": (".ci/run", "./dev demo"),
    "./dev lint": (".ci/run", "./dev lint"),
    "./dev docs": (".ci/run", "./dev docs"),
    "cc -O3 -fopenmp -I. train_gpt2.c": ("tests/docs/run_install.py", "def llmc("),
    "nvcc": ("bench/foveal_bench/llmc.py", "examples/llmc/foveal_att.cpp"),  # by hand, as it needs CUDA and a checkout of llm.c
    "foveal-bench": ("tests/python/test_bench_verbs.py", "test_documented_commands_are_understood"),
    "foveal": ("tests/docs/CMakeLists.txt", "run_commands.py"),
    "export FOVEAL_TUNED": ("tests/docs/run_commands.py", "foveal tune"),  # needs the device of the command before it
}


def commands():
    """(page, command) of each line of a shell, parts that && joins apart."""
    for page in doc_blocks.pages():
        for _, text in doc_blocks.blocks(page, "", "sh"):
            for line in text.splitlines():
                line = line.removeprefix("$ ").partition("  #")[0].strip()
                if re.match(r"(pip|cmake|\./dev|foveal|foveal-bench|export|cc|c\+\+|nvcc|python3?|make|ctest) ", line + " "):
                    yield from ((page, part.strip()) for part in (line.split(" && ") if line.startswith(("pip", "cmake")) else [line]))


def run(command, folder):
    print("+", command, flush=True)
    generator = {} if shutil.which("make") else {"CMAKE_GENERATOR": "Ninja"}  # where CMake's own choice is not here
    done = subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, **generator}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")


def install(build, scratch):
    """Each page's cmake commands; returns the prefixes, and what a shell is told where to find them."""
    prefixes, told, nobody = [], collections.defaultdict(set), []
    for page, command in commands():
        if command.startswith("cmake -S . -B build"):
            run(command.replace("-B build", f"-B {scratch}/{page.stem}"), ROOT)
        elif command == "cmake --build build -j$(nproc)":  # -j alone is as many processes as there are files, for make
            run(f"cmake --build {build} -j$(nproc) --target foveal foveal_command", ROOT)
        elif found := re.fullmatch(r"cmake --install build --prefix (\S+)", command):
            prefixes.append(scratch / f"{page.stem}-installed")
            run(command.replace("install build", f"install {build}").replace(found[1], str(prefixes[-1])), ROOT)
        elif found := re.match(r"export (CMAKE_PREFIX_PATH|PKG_CONFIG_PATH|LD_LIBRARY_PATH)=", command):
            told[found[1]].add(command)
        elif not any(command.startswith(start) and words in (ROOT / file).read_text() for start, (file, words) in ELSEWHERE.items()):
            nobody.append(f"{page.relative_to(ROOT)}: {command}")
    if nobody or len(prefixes) < 2 or len(told) != 3 or any(len(ways) != 1 for ways in told.values()):
        sys.exit("commands that nothing runs, or that differ:\n" + "\n".join([*nobody, *itertools.chain(*told.values())]))
    return prefixes, "; ".join(itertools.chain(*told.values()))


def programs(told, scratch):
    """The page's first C and C++ programs, by pkg-config and by find_package, as the page says it; `told` says where the library is."""
    said = PAGE.read_text()
    (pkg_config,) = re.findall(r"`(cc [^`]*pkg-config[^`]*)`", said)
    ((_, cmake),) = doc_blocks.blocks(PAGE, "cmake")
    folder = scratch / "programs"
    folder.mkdir()
    for language, name in (("c", "program.c"), ("cpp", "program.cpp")):
        text, *_ = [text for _, text in doc_blocks.blocks(PAGE, language) if "int main(" in text]
        (folder / name).write_text(text)
    if shutil.which("pkg-config"):
        run(f"{told}; {pkg_config} -o by-pkg-config && ./by-pkg-config", folder)
    for name, language in (("program.c", "C"), ("program.cpp", "CXX")):
        lists = f"cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES {language})\nadd_executable(program {name})\n{cmake}"
        (folder / "CMakeLists.txt").write_text(lists)
        run(f"{told}; cmake -S . -B {language} && cmake --build {language} && {language}/program", folder)


def llmc(told, scratch):
    """The command of examples/llmc, with a program that calls what train_gpt2.c would in its place."""
    (command,) = [line for _, text in doc_blocks.blocks(LLMC / "README.md", "") for line in text.splitlines() if line.startswith("cc ")]
    folder = scratch / "llmc"
    folder.mkdir()
    shutil.copy(LLMC / "attention_foveal.h", folder)
    shutil.copy(ROOT / "tests/examples/llmc.c", folder / "train_gpt2.c")
    if shutil.which("pkg-config"):
        run(f"{told}; {command} && ./train_gpt2", folder)


def keeps(told, name):
    """Whether a shell that is told so still has what its user had set, and no empty folder, which means the one it is in, where there was nothing."""
    def becomes(**had):
        environment = {word: value for word, value in os.environ.items() if word != name} | had
        return subprocess.run(["bash", "-c", f'{told}; echo "${name}"'], env=environment, capture_output=True, text=True).stdout.strip().split(":")

    return "/before" in becomes(**{name: "/before"}) and "" not in becomes()


def main():
    build, scratch = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    prefixes, told = install(build, scratch)
    lib = next(path.parent.name for path in prefixes[-1].rglob("libfoveal.so"))
    if kept := [name for name in ("CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH", "LD_LIBRARY_PATH") if not keeps(told, name)]:
        sys.exit(f"the pages do not keep what was in {', '.join(kept)}, or add an empty folder to it:\n{told}")
    here = told.replace("~/.local/lib", f"{prefixes[-1]}/{lib}").replace("~/.local", str(prefixes[-1]))
    programs(here, scratch)
    llmc(here, scratch)


if __name__ == "__main__":
    main()
