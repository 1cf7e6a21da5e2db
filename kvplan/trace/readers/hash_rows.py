"""JSON rows of lengths and block ids: Mooncake, vLLM timed traces, GuideLLM, Qwen-Bailian, ServeGen offline.

They look alike: ``{"timestamp": ..., "input_length": ..., "output_length": ..., "hash_ids": [...]}``; the
unit of time and the block size differ. What is not told is inferred and noted.
"""

from __future__ import annotations

from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import Clock
from kvplan.trace.column import Column
from kvplan.trace.long_json import is_list
from kvplan.trace.name_numbers import NameNumbers
from kvplan.trace.rows import tokens


class HashRows:
    """Adds rows of ``timestamp, input_length, output_length, hash_ids``; only input_length must be there."""

    def __init__(self, builder: TraceBuilder, unit: str) -> None:
        self.builder = builder
        self.clock = Clock(unit, "timestamp")

    def row(self, value: dict[str, Any], line: int) -> None:
        """Add one request.

        Raises:
            InputError: the row is none; without a place.
        """
        time, output, ids = value.get("timestamp"), value.get("output_length"), value.get("hash_ids") or ()
        if ids != () and not is_list(ids):
            raise InputError("is not a list of block ids", field="hash_ids", value=ids)
        self.builder.add(
            None if time is None else self.clock.seconds(time),
            tokens(value.get("input_length"), "input_length"),
            None if output is None else tokens(output, "output_length"),
            ids=ids,
            name=self.name(value),
            session=self.session(value),
        )

    def name(self, value: dict[str, Any]) -> str | None:
        """The request's own id, where the format has one."""
        name = value.get("request_id")
        return None if name is None else str(name)

    def session(self, value: dict[str, Any]) -> Any:
        """The conversation it belongs to, where the format says."""
        return None


class BailianRows(HashRows):
    """Qwen-Bailian: ``chat_id`` and ``parent_chat_id`` chain the turns; the root is found through the chain.

    Parents may lie outside the file and chains may be broken; then a row begins a session of its own.
    """

    def __init__(self, builder: TraceBuilder, unit: str) -> None:
        super().__init__(builder, unit)
        self._chats, self._root = NameNumbers(), Column()  # the number of the chat that each chat goes back to

    def name(self, value: dict[str, Any]) -> str | None:
        return None if value.get("chat_id") is None else str(value["chat_id"])

    def session(self, value: dict[str, Any]) -> Any:
        chat, parent = _hashable(value.get("chat_id")), _hashable(value.get("parent_chat_id"))
        above = self._chats.find(parent)
        root = None if above < 0 else self._root[above]
        if chat in (None, ""):  # nobody can go back to it
            return root
        own = self._chats.number(chat)
        if own == len(self._root):
            self._root.append(own if root is None else root)
        return own if root is None else root


def _hashable(value: Any) -> Any:
    if isinstance(value, dict) or is_list(value):
        raise InputError("is no id", field="chat_id", value=value)
    return value
