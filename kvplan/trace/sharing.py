"""How much of the prompts has been seen before: prefix sharing with a cache without limit."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvplan.trace.hash_numbers import HashNumbers
from kvplan.trace.trace import Longs, Trace

_ROOT = 0


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
    tree = _Radix()
    for row, (segments, source, start) in enumerate(content.rows()):
        tokens[row], last_row[row], node = tree.insert(_ROOT, segments, row)
        if source >= 0 and whole[row]:
            tree.insert(node, [(source, start, int(trace.output_tokens[row]))], row)
    return PrefixHits(tokens, last_row)


class _Radix:
    """A radix tree of tokens, in 30 bytes an edge: nested dictionaries take 400.

    An edge stands under (the node above, source and place of its first token), of which a 64-bit hash is kept: among
    ten million edges two are taken for one by chance once in 300,000 traces.
    """

    def __init__(self) -> None:
        self._edges = HashNumbers()
        self._tokens, self._below, self._last = array("i"), array("i"), array("i")
        """Of each edge: its length, the node that it leads to, the last row that passed it."""
        self._nodes = 1

    def insert(self, node: int, segments: Iterable[tuple[int, int, int]], row: int) -> tuple[int, int, int]:
        """Insert ``segments`` below ``node``; (tokens that were there, last row that passed them, where it ends)."""
        hit, last, known = 0, -1, True
        for source, start, count in segments:
            while count:
                edge = self._edges.number(hash((node, source, start)))
                if edge == len(self._tokens):
                    self._add(count, self._new_node(), row)
                    known = False
                elif count < self._tokens[edge]:
                    self._split(edge, count, source, start)
                passed = self._tokens[edge]
                if known:
                    hit += passed
                    last = self._last[edge]
                self._last[edge] = row
                node = self._below[edge]
                start += passed
                count -= passed
        return hit, last, node

    def _split(self, edge: int, count: int, source: int, start: int) -> None:
        """Let the edge, which begins with the token (source, start), end after ``count`` tokens."""
        middle = self._new_node()
        self._edges.number(hash((middle, source, start + count)))
        self._add(self._tokens[edge] - count, self._below[edge], self._last[edge])
        self._tokens[edge], self._below[edge] = count, middle

    def _add(self, tokens: int, below: int, last: int) -> None:
        self._tokens.append(tokens)
        self._below.append(below)
        self._last.append(last)

    def _new_node(self) -> int:
        self._nodes += 1
        return self._nodes - 1


def hit_blocks(trace: Trace, hits: PrefixHits, block_size: int) -> tuple[int, int]:
    """(blocks seen before, blocks) in blocks of the trace's own ids, a partial last block counted as one."""
    assert trace.content is not None
    covered = trace.content.covered_tokens()
    found = np.where(hits.tokens == covered, -(-covered // block_size), hits.tokens // block_size)
    return int(found.sum()), int((-(-covered // block_size)).sum())
