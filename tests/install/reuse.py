#!/usr/bin/env python3
"""A compiler launcher for builds of the library in other folders: takes the object of a build that is there already where that compiled the same source
with the same options, as compiling everything again takes minutes; compiles what is not there.

usage: reuse.py BUILD FOLDER COMPILER ARGUMENT...    BUILD: what is there; FOLDER: where the library's build files are this time
"""
import json
import os
import pathlib
import shlex
import shutil
import sys


def compared(words):
    """(what decides what an object is, the object) of a command, from its first option on: before that stand launchers and the compiler."""
    kept, output = [], ""
    options = iter(words[next(i for i, word in enumerate(words) if word.startswith("-")) :])
    for word in options:
        if word in ("-o", "-MF", "-MT"):
            value = next(options)
            output = value if word == "-o" else output
        elif word not in ("-MD", "-Werror"):
            kept.append(word)
    return kept, output


def main():
    build, folder, *command = sys.argv[1:]
    wanted, output = compared([word.replace(folder, build) for word in command])
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
        if entry["file"] == wanted[-1]:
            kept, made = compared(shlex.split(entry["command"]))
            if kept == wanted:
                shutil.copyfile(pathlib.Path(entry["directory"]) / made, output)
                return
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
