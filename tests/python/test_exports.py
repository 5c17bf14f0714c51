"""The extension exports its entry point alone: a process holds many libraries, whose copies of the C++ standard library must not meet."""

import shutil
import subprocess

import pytest

from foveal import _core


def test_the_extension_exports_its_entry_point_alone():
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm, which lists what a library exports")
    listed = subprocess.run([nm, "-D", "--defined-only", _core.__file__], check=True, capture_output=True, text=True).stdout
    assert [line.split()[-1] for line in listed.splitlines()] == ["PyInit__core"]
