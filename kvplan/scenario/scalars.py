"""Words to values: the scalars of a scenario, the same in a file and on the command line.

YAML 1.2's core schema, not 1.1's: ``1e-3`` is a number, and ``no``, ``1:30`` and ``010`` are not surprises.
Underscores between digits are allowed, as in ``131_072``.
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_RADIX = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 400
"""Digits. Python itself refuses to read longer integers (CVE-2020-10735), and no quantity here needs them."""


def plain_scalar(text: str) -> Scalar:
    """The value of an unquoted scalar; ``text`` itself where it is no null, boolean or number."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _LONGEST_NUMBER:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _RADIX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text
