"""Content as block ids, for formats that tell sharing so."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvplan.trace.sharing import PrefixHits, prefix_hits
from kvplan.trace.trace import Trace

SIZES = (512, 256, 128, 64, 32, 16)
_KEPT = 0.995


def block_ids(trace: Trace, block_size: int) -> list[list[int]]:
    """Ids of each prompt's blocks of ``block_size`` tokens, the last one partial (ceil); chained, dense, from 0.

    Two ids are equal when the whole prefix up to and including the block is the same tokens. A block with a
    token that no other request can have gets an id of its own.
    """
    content = trace.content
    known: dict[Any, int] = {}
    count = 0
    pointer = [0] * (len(trace) + 1) if content is None else content.segment_ptr.tolist()
    columns = ([], [], []) if content is None else (content.segment_source, content.segment_start, content.segment_tokens)
    segments = list(zip(*(column if isinstance(column, list) else column.tolist() for column in columns), strict=True))
    rows = []
    for row, prompt in enumerate(trace.prompt_tokens.tolist()):
        ids: list[int] = []
        parent = -1
        for pieces in _blocks(segments[pointer[row] : pointer[row + 1]], prompt, block_size):
            key = None if pieces is None else (parent, *pieces)
            found = None if key is None else known.get(key)
            if found is None:
                found = count
                count += 1
                if key is not None:
                    known[key] = found
            ids.append(found)
            parent = found
        rows.append(ids)
    return rows


def _blocks(segments: list[tuple[int, int, int]], prompt: int, size: int) -> list[tuple[Any, ...] | None]:
    """The runs of tokens that make up each block; None for a block with a token unique to the request."""
    blocks: list[tuple[Any, ...] | None] = []
    pieces: list[tuple[int, int, int]] = []
    room = size
    for source, start, tokens in segments:
        while tokens:
            taken = min(tokens, room)
            if pieces and pieces[-1][0] == source and pieces[-1][1] + pieces[-1][2] == start:
                pieces[-1] = (source, pieces[-1][1], pieces[-1][2] + taken)
            else:
                pieces.append((source, start, taken))
            start, tokens, room = start + taken, tokens - taken, room - taken
            if not room:
                blocks.append(tuple(pieces))
                pieces, room = [], size
    covered = len(blocks) * size + (size - room)
    if covered == prompt and pieces:
        blocks.append(tuple(pieces))
    blocks += [None] * (-(-prompt // size) - len(blocks))
    return blocks


def fitting_block_size(trace: Trace) -> int:
    """The file's own block size, or the largest usual one that keeps nearly all that is shared."""
    if trace.origin.block_size is not None:
        return trace.origin.block_size
    hits = prefix_hits(trace)
    total = int(hits.tokens.sum())
    for size in SIZES:
        if kept_tokens(trace, hits, size) >= _KEPT * total:
            return size
    return SIZES[-1]


def kept_tokens(trace: Trace, hits: PrefixHits, size: int) -> int:
    """How many of the hit tokens blocks of ``size`` can tell of."""
    whole = hits.tokens == trace.prompt_tokens
    return int(np.where(whole, hits.tokens, hits.tokens // size * size).sum())
