"""Content as block ids, for formats that tell sharing so."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kvplan.trace.sharing import PrefixHits, prefix_hits
from kvplan.trace.trace import Trace, no_outputs

SIZES = (512, 256, 128, 64, 32, 16)
_KEPT = 0.995


def block_ids(trace: Trace, block_size: int) -> list[list[int]]:
    """Ids of each prompt's blocks of ``block_size`` tokens, the last partial (ceil); chained, dense, from 0.

    Two ids are equal when the whole prefix up to and including the block is the same tokens. A block with a
    token that no other request can have gets an id of its own.
    """
    content = trace.content
    assert content is not None
    known: dict[Any, int] = {}
    count = 0
    rows = []
    for (segments, _, _), prompt in zip(content.rows(), trace.prompt_tokens.tolist(), strict=True):
        ids: list[int] = []
        parent = -1
        for pieces in _blocks(segments, prompt, block_size):
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
    """The file's own block size, or the largest usual one, that keeps nearly all that prompts share."""
    hits = _prompt_hits(trace)
    own = [] if trace.origin.block_size is None else [trace.origin.block_size]
    for size in (*own, *SIZES):
        if _kept(trace, hits, size) >= _KEPT * hits.tokens.sum():
            return size
    return SIZES[-1]


def kept_share(trace: Trace, size: int) -> float:
    """Which part of the shared tokens ids of ``size`` tell of; what repeats an output is not in them."""
    total = prefix_hits(trace).tokens.sum()
    return float(_kept(trace, _prompt_hits(trace), size) / total) if total else 1.0


def _prompt_hits(trace: Trace) -> PrefixHits:
    assert trace.content is not None
    unnamed = dataclasses.replace(trace.content, output_source=no_outputs(len(trace)))
    return prefix_hits(dataclasses.replace(trace, content=unnamed))


def _kept(trace: Trace, hits: PrefixHits, size: int) -> int:
    whole = hits.tokens == trace.prompt_tokens
    return int(np.where(whole, hits.tokens, hits.tokens // size * size).sum())
