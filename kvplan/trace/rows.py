"""Bad rows: refused, skipped or reported, but always counted; and how a cell becomes a number."""

from __future__ import annotations

import math
from typing import Any, Literal

from kvplan.errors import InputError

OnBadRow = Literal["error", "skip", "report"]
SHOWN = 10
"""How many bad rows are shown with their line; all are counted."""

MAX_TOKENS = 2**31 - 1
"""A longer prompt or answer is taken for a broken number: block tables count tokens in 32 bits."""

MAX_BLOCK_SIZE = 1 << 20
"""Tokens in a block of hash ids: more is taken for a broken number."""


class BadRows:
    """Collects the rows that could not be understood.

    ``error`` refuses the file once it is read, so that the message shows the first ten and the count;
    ``skip`` and ``report`` leave the rows out (``report`` also shows them: see ``Origin.bad_row_examples``).
    """

    def __init__(self, source: str, policy: OnBadRow) -> None:
        if policy not in ("error", "skip", "report"):
            raise InputError(
                "is not a policy for bad rows", field="on_bad_row", value=policy, hint="error, skip, report"
            )
        self.source = source
        self.policy = policy
        self.count = 0
        self._first: list[tuple[int, InputError]] = []

    def add(self, line: int, error: InputError) -> None:
        """Note that ``line`` (1-based) could not be understood, and why."""
        self.count += 1
        if len(self._first) < SHOWN:
            self._first.append((line, error))

    @property
    def examples(self) -> tuple[str, ...]:
        """The first ten, each as ``line N: what is wrong``."""
        return tuple(f"line {line}: {_bare(error)}" for line, error in self._first)

    def settle(self) -> None:
        """Raise the InputError that the policy ``error`` asks for, where there is reason to."""
        if self.policy != "error" or not self.count:
            return
        line, first = self._first[0]
        hint = first.hint or ""
        if self.count > 1:
            others = "; ".join(self.examples[1:])
            hint = f"{self.count} rows are bad, also {others}" + ("; ..." if self.count > SHOWN else "")
        raise InputError(
            first.message,
            field=first.field,
            **({"value": first.value} if first.has_value else {}),
            source=self.source,
            line=line,
            column=first.column,
            hint=(hint + ". " if hint else "") + "--on-bad-row skip leaves such rows out",
        )


def _bare(error: InputError) -> str:
    """The error's sentence without its place."""
    bare = InputError(error.message, field=error.field, **({"value": error.value} if error.has_value else {}))
    return str(bare)


def number(value: Any, field: str) -> int | float:
    """A finite number from a JSON value or a CSV cell; ints stay exact.

    Raises:
        InputError: without a place; the caller knows the line.
    """
    if isinstance(value, str):
        text = value.strip()
        if len(text) > 400:  # int() of a long text is quadratic
            raise InputError("is not a number", field=field, value=text[:40])
        try:
            value = int(text)
        except ValueError:
            try:
                value = float(text)
            except ValueError:
                raise InputError("is not a number" if text else "is empty", field=field, value=text) from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError("is missing" if value is None else "is not a number", field=field, value=value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError("is not a finite number", field=field, value=value)
    if abs(value) > 1e30:  # an int of any length would overflow where it meets a float
        raise InputError("is no plausible number", field=field, value=str(value)[:40])
    return value


def tokens(value: Any, field: str) -> int:
    """A count of tokens, 0 allowed: a whole number, also written ``128.0`` or ``"128"``.

    Raises:
        InputError: negative, fractional, absurdly large or not a number; without a place.
    """
    count = value if type(value) is int else number(value, field)
    if count < 0:
        raise InputError("is negative", field=field, value=value)
    if count > MAX_TOKENS:
        raise InputError(f"is more than {MAX_TOKENS} tokens", field=field, value=value)
    if count != int(count):
        raise InputError("is not a whole number of tokens", field=field, value=value)
    return int(count)


def are_tokens(values: list[Any]) -> bool:
    """Whether ``tokens`` would take each of some values as it is: they are ints and in range."""
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= MAX_TOKENS


def written_name(name: Any) -> str:
    """A request's name as text that any file can hold: half a surrogate pair, which JSON may escape, is ``?``."""
    text = str(name)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


LEAST = {"priority": -MAX_TOKENS, "n": 1, "beam_width": 0}
"""The smallest value of the small whole numbers that a request may carry."""


def small(value: Any, field: str, least: int) -> int:
    """A whole number of 32 bits, at least ``least``.

    Raises:
        InputError: not such a number; without a place.
    """
    count = number(value, field)
    if count != int(count) or not least <= count <= MAX_TOKENS:
        raise InputError(f"must be a whole number of at least {least}", field=field, value=value)
    return int(count)
