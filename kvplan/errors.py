"""The ways kvplan says no.

::

    KvplanError            exit 1   anything kvplan refuses, with a sentence for a person
    ├── InputError         exit 2   a file, key, flag or value that cannot be understood
    ├── InfeasibleError    exit 3   understood, but it cannot work; says why and what would
    └── ToleranceError     exit 4   a prediction lies further from the measurement than allowed
"""

from __future__ import annotations

from typing import Any

_NOTHING = object()


class KvplanError(Exception):
    """Something a person can mend. Every part that is known is named in the message.

    Args:
        message: what is wrong, one sentence, no full stop needed.
        field: the key, column or flag at fault, e.g. ``cache.block_size``.
        value: the offending value, shown with ``repr``.
        source: the file (or ``<stdin>``) it stands in.
        line, column: 1-based position in ``source``.
        hint: what to do about it.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: Any = _NOTHING,
        source: str | None = None,
        line: int | None = None,
        column: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.message = message
        self.field = field
        self.value = None if value is _NOTHING else value
        self.has_value = value is not _NOTHING
        self.source = source
        self.line = line
        self.column = column
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.source, self.line, self.column) if part is not None)
        text = f"{where}: " if where else ""
        if self.field is not None:
            text += f"{self.field}: "
        text += self.message
        if self.has_value:
            shown = repr(self.value)
            text += f" (got {shown if len(shown) <= 120 else shown[:117] + '...'})"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text


class InputError(KvplanError):
    """A file, key, flag or value that cannot be understood."""

    exit_code = 2


class InfeasibleError(KvplanError):
    """A configuration that is understood and cannot work."""

    exit_code = 3


class ToleranceError(KvplanError):
    """A prediction that lies further from the measurement than the tolerance allows."""

    exit_code = 4
