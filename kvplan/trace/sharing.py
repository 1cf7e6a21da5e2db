"""How much of the prompts has been seen before: prefix sharing with a cache without limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.trace.trace import Longs, Trace


@dataclass(frozen=True, eq=False)
class PrefixHits:
    """What an unlimited prefix cache could serve.

    Args:
        tokens: int64[R], first tokens of each prompt that stand at the beginning of an earlier request (of
            its prompt, or of its prompt and output where the trace knows the output's identity).
        last_row: int64[R], the latest request before that holds all of them; -1 where there is none.
    """

    tokens: Longs
    last_row: Longs


def prefix_hits(trace: Trace) -> PrefixHits:
    """Walk a radix tree over the content of all requests in order of arrival; by token, not by block."""
    rows = len(trace)
    tokens, last_row = np.zeros(rows, np.int64), np.full(rows, -1, np.int64)
    content = trace.content
    if content is None:
        return PrefixHits(tokens, last_row)
    whole = content.covered_tokens() == trace.prompt_tokens
    root: dict[tuple[int, int], list[Any]] = {}
    for row, (segments, source, start) in enumerate(content.rows()):
        hit, last, node = _walk(root, segments, row)
        tokens[row], last_row[row] = hit, last
        if source >= 0 and whole[row]:
            _walk(node, [(source, start, int(trace.output_tokens[row]))], row)
    return PrefixHits(tokens, last_row)


def _walk(
    node: dict[tuple[int, int], list[Any]], segments: list[tuple[int, int, int]], row: int
) -> tuple[int, int, dict[tuple[int, int], list[Any]]]:
    """Insert ``segments`` below ``node``; (tokens that were there, last row that passed them, where it ends).

    An edge is ``[tokens, the node below, last row]`` under the key of its first token (source, place).
    """
    hit, last, known = 0, -1, True
    for source, start, count in segments:
        while count:
            edge = node.get((source, start))
            if edge is None:
                edge = node[source, start] = [count, {}, row]
                known = False
            elif count < edge[0]:
                edge[1] = {(source, start + count): [edge[0] - count, edge[1], edge[2]]}
                edge[0] = count
            if known:
                hit += edge[0]
                last = edge[2]
            edge[2] = row
            node = edge[1]
            start += edge[0]
            count -= edge[0]
    return hit, last, node


def hit_blocks(trace: Trace, hits: PrefixHits, block_size: int) -> tuple[int, int]:
    """(blocks seen before, blocks) in blocks of the trace's own ids, a partial last block counted as one."""
    assert trace.content is not None
    covered = trace.content.covered_tokens()
    found = np.where(hits.tokens == covered, -(-covered // block_size), hits.tokens // block_size)
    return int(found.sum()), int((-(-covered // block_size)).sum())
