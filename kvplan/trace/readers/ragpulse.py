"""RAGPulse: prompts as chunks of documents; the chunks' lengths stand in tables beside the trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvplan.errors import InputError
from kvplan.trace.builder import TraceBuilder
from kvplan.trace.clock import Clock
from kvplan.trace.readers.fields import listed, plain
from kvplan.trace.rows import tokens
from kvplan.trace.source import open_source

# The order in which the components stand in the prompt, and the table of each.
COMPONENTS = {
    "sys_prompt": ("1_sys_prompt.jsonl", "sys_prompt_id"),
    "passages_ids": ("2_passages.jsonl", "passage_id"),
    "history": ("3_history.jsonl", "history_id"),
    "web_search": ("5_web_search.jsonl", "web_search_id"),
    "user_input": ("4_user_input.jsonl", "user_input_id"),
}

_LONGEST_ROW = 1 << 16
"""Characters of a row of chunk lengths: an id and a number."""


class RagPulseRows:
    """``0_trace.jsonl``. Chunk ids are global and unchained; a chunk is the same tokens wherever it stands.

    The tables are read from the trace's own folder, by their published names; without them nothing is known
    to be shared.
    """

    def __init__(self, builder: TraceBuilder, unit: str, path: Path | None) -> None:
        self.builder = builder
        self.clock = Clock(unit, "timestamp")
        self._lengths = self._tables(path)

    def _tables(self, path: Path | None) -> dict[str, dict[Any, int]] | None:
        folder = None if path is None else path.parent
        if folder is None or not all((folder / name).is_file() for name, _ in COMPONENTS.values()):
            self.builder.note("the tables of chunk lengths (1_..5_*.jsonl) are not beside the trace: no sharing known")
            return None
        tables = {part: _table(folder / name, key) for part, (name, key) in COMPONENTS.items()}
        order = ", ".join(COMPONENTS)
        self.builder.note(f"prefix sharing: chunks in the order {order}; lengths from the tables beside the trace")
        return tables

    def row(self, value: dict[str, Any], line: int) -> None:
        parts = value.get("hash_ids")
        if not isinstance(parts, dict):
            raise InputError("is not an object of components", field="hash_ids", value=parts)
        self.builder.add(
            self.clock.seconds(value.get("timestamp")),
            tokens(value.get("input_length"), "input_length"),
            tokens(value.get("output_length"), "output_length"),
            session=plain(value.get("session_id"), "session_id"),
            segments=None if self._lengths is None else self._segments(parts, self._lengths),
        )

    def _segments(self, parts: dict[str, Any], lengths: dict[str, dict[Any, int]]) -> list[tuple[int, int, int]]:
        segments = []
        for part, table in lengths.items():
            for chunk in listed(parts.get(part), f"hash_ids.{part}"):
                length = table.get(plain(chunk, f"hash_ids.{part}"))
                if length is None:
                    raise InputError("is in no table of chunk lengths", field=f"hash_ids.{part}", value=chunk)
                segments.append((self.builder.source((part, chunk)), 0, length))
        return segments


def _table(path: Path, key: str) -> dict[Any, int]:
    table = {}
    with open_source(path) as source:
        for line, text in source.lines():
            if not text.strip():
                continue
            try:
                if len(text) > _LONGEST_ROW:
                    raise ValueError
                row = json.loads(text)
                table[plain(row[key], key)] = tokens(row["token_length"], "token_length")
            except (ValueError, KeyError, TypeError, RecursionError, InputError):
                raise InputError("is no row of chunk lengths", value=text[:60], source=str(path), line=line) from None
    return table
