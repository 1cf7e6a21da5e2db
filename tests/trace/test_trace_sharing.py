"""Prefix sharing against a plain token-by-token count."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvplan.trace import Trace
from kvplan.trace.content import ContentBuilder, blocks_content
from kvplan.trace.sharing import prefix_hits
from kvplan.trace.writers.blocks import block_ids

SEGMENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 4)), max_size=4)
REQUEST = st.tuples(SEGMENTS, st.integers(0, 3), st.sampled_from([-1, 0, 1, 2]), st.integers(1, 3))


def built(requests) -> Trace:
    builder = ContentBuilder()
    prompts, outputs = [], []
    for segments, tail, source, output in requests:
        builder.add(segments, output_source=source)
        prompts.append(max(1, sum(count for _, _, count in segments) + tail))
        outputs.append(output)
    return Trace(np.zeros(len(prompts)), np.array(prompts), np.array(outputs), content=builder.build())


def tokens_of(trace: Trace, row: int) -> list:
    """Every token of a request as a value: shared ones equal, others unlike any."""
    content = trace.content
    own = range(content.segment_ptr[row], content.segment_ptr[row + 1])
    tokens = [
        (int(content.segment_source[s]), int(content.segment_start[s]) + i)
        for s in own
        for i in range(content.segment_tokens[s])
    ]
    tokens += [(row, "unique", i) for i in range(int(trace.prompt_tokens[row]) - len(tokens))]
    source = int(content.output_source[row])
    answer = [(source, i) if source >= 0 else (row, "answer", i) for i in range(int(trace.output_tokens[row]))]
    return [tokens, tokens + answer]


@given(st.lists(REQUEST, min_size=1, max_size=8))
def test_hits_are_the_longest_beginning_of_an_earlier_request(requests):
    trace = built(requests)
    expected = []
    for row in range(len(trace)):
        prompt = tokens_of(trace, row)[0]
        longest = 0
        for earlier in range(row):
            whole = tokens_of(trace, earlier)[1]
            same = 0
            while same < min(len(prompt), len(whole)) and prompt[same] == whole[same]:
                same += 1
            longest = max(longest, same)
        expected.append(longest)
    assert prefix_hits(trace).tokens.tolist() == expected


@given(st.lists(REQUEST, min_size=1, max_size=8), st.integers(1, 5))
def test_equal_block_ids_mean_equal_tokens_up_to_the_block(requests, size):
    trace = built(requests)
    ids = block_ids(trace, size)
    prefix = {}
    for row, own in enumerate(ids):
        tokens = tokens_of(trace, row)[0]
        assert len(own) == -(-len(tokens) // size)
        for place, block in enumerate(own):
            until = tuple(tokens[: (place + 1) * size])
            assert prefix.setdefault(block, until) == until
    assert len(set(prefix.values())) == len(prefix)


@given(st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=6), st.integers(1, 4))
def test_runs_of_ids_are_one_segment_and_stay_the_same_blocks(ids, size):
    prompts = np.array([max(1, len(row) * size - 1) for row in ids])
    flat = np.array([block for row in ids for block in row], dtype=np.int64)
    content = blocks_content(prompts, np.array([len(row) for row in ids]), flat, size)
    for row, blocks in enumerate(ids):
        own = range(content.segment_ptr[row], content.segment_ptr[row + 1])
        tokens = [content.segment_start[s] + i for s in own for i in range(content.segment_tokens[s])]
        expected = [block * size + i for block in blocks for i in range(size)]
        assert tokens == expected[: prompts[row]]


def test_huge_ids_are_renumbered():
    content = blocks_content(np.array([4, 4]), np.array([2, 2]), np.array([2**61, 5, 2**61, 6]), 2)
    assert content.segment_start.max() < 2**40
    assert content.take(np.array([1, 0])).segment_ptr.tolist() == [0, 2, 4]
