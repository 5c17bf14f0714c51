"""A bar on a terminal, by tqdm where it is installed (pip install './bench[progress]'); elsewhere nothing but what is said."""

from __future__ import annotations

from typing import Collection, Iterator, TypeVar

T = TypeVar("T")


def progress(items: Collection[T], unit: str = "case") -> Iterator[T]:
    try:
        from tqdm import tqdm
    except ImportError:
        yield from items
    else:  # disable=None: silent where stderr is no terminal
        yield from tqdm(items, unit=unit, disable=None, dynamic_ncols=True, leave=False)


def say(text: str) -> None:
    """A line on stdout, above a bar."""
    try:
        from tqdm import tqdm
    except ImportError:
        print(text, flush=True)
    else:
        tqdm.write(text)
