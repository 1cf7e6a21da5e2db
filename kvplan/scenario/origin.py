"""Where a scenario's values came from, so that a message can point there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvplan.errors import InputError
from kvplan.scenario.document import Document
from kvplan.scenario.nodes import Key


@dataclass(frozen=True)
class Origin:
    """Args:
    document: the text it was read from; None for one built in Python.
    root: where in the document the scenario begins: ``("scenario",)`` in a summary.json.
    flags: for each value given on the command line its flag: ``{("cache", "block_size"): "--block-size"}``,
        ``{("slo", "ttft_s", "p99"): "--slo ttft_s.p99"}``.
    variant: the place in ``variants`` for a run made from one, whose own keys are looked up first.
    folder: what relative paths are relative to.
    """

    document: Document | None = None
    root: tuple[Key, ...] = ()
    flags: Mapping[tuple[Key, ...], str] = field(default_factory=dict)
    variant: int | None = None
    folder: Path = Path()

    def error(
        self,
        path: tuple[Key, ...],
        message: str,
        *,
        at_key: bool = False,
        hint: str | None = None,
        **value: Any,
    ) -> InputError:
        """An `InputError` that names the flag, or the key with its file, line and column.

        ``value=...`` is shown where it is given. ``at_key`` points at the key rather than its value.
        """
        for length in range(len(path), 0, -1):
            if (flag := self.flags.get(path[:length])) is not None:
                inner = dotted(path[length:])
                return InputError(message, field=f"{flag} {inner}".strip(), hint=hint, **value)
        line, column = self._position(path, at_key) or (None, None)
        return InputError(
            message,
            field=dotted(path) or None,
            source=None if self.document is None else self.document.source,
            line=line,
            column=column,
            hint=hint,
            **value,
        )

    def lines(self, key: str, count: int) -> Iterable[int | None]:
        """The line of each of the ``count`` items of a list, from 1; None where it is unknown."""
        if self.document is None:
            return [None] * count
        known = self.document.lines((*self.root, key))
        if known is not None:
            return known
        positions = (self._position((key, place), at_key=False) for place in range(count))
        return (position and position[0] for position in positions)

    def for_variant(self, place: int) -> Origin:
        """The origin of a run made from ``variants[place]``."""
        return replace(self, variant=place)

    def _position(self, path: tuple[Key, ...], at_key: bool) -> tuple[int, int] | None:
        if self.document is None:
            return None
        if self.variant is not None:
            own = (*self.root, "variants", self.variant, *path)
            if own in self.document:
                return self.document.position(own, at_key=at_key)
        return self.document.position((*self.root, *path), at_key=at_key)


def dotted(path: tuple[Key, ...]) -> str:
    """``("requests", 3, "prompt")`` as ``requests[3].prompt``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def steps(text: str) -> tuple[Key, ...]:
    """``requests[3].prompt`` as ``("requests", 3, "prompt")``."""
    words = text.replace("[", ".[").split(".")
    return tuple(int(word[1:-1]) if word[:1] == "[" and word[1:-1].isdigit() else word for word in words if word)
