"""Finding a name in a table, and saying which names are near when it is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from kvplan.errors import InputError


@cache
def load_table(file_name: str) -> dict[str, dict[str, Any]]:
    """A data file of this package: name to entry."""
    import yaml

    text = files("kvplan.catalog").joinpath("data", file_name).read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser reads the models ten times faster
    table: dict[str, dict[str, Any]] = yaml.load(text, Loader=loader)
    return table


def fold(name: str) -> str:
    """A name without the marks that people write in different ways."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def find(table: Mapping[str, Mapping[str, Any]], name: str, *, field: str) -> tuple[str, Mapping[str, Any]]:
    """The entry that ``name`` means: its own name or one of its ``aliases``, whatever the case.

    Raises:
        InputError: nothing fits; the hint lists the nearest names.
    """
    wanted = fold(name)
    spellings = {fold(key): key for key in table}
    for key, entry in table.items():
        for alias in entry.get("aliases", ()):
            spellings.setdefault(fold(alias), key)
            spellings.setdefault(fold(alias).rsplit("/", 1)[-1], key)
    found = spellings.get(wanted) or spellings.get(wanted.rsplit("/", 1)[-1])
    if found is None:
        raise InputError(f"unknown {field}", field=field, value=name, hint=near(wanted, spellings, table))
    return found, table[found]


def near(wanted: str, spellings: Mapping[str, str], table: Iterable[str]) -> str:
    """A hint that names what ``wanted`` may have meant."""
    close = list(dict.fromkeys(spellings[match] for match in get_close_matches(wanted, spellings, n=6, cutoff=0.5)))
    if close:
        return "nearest: " + ", ".join(close[:4])
    return "known: " + ", ".join(table)
