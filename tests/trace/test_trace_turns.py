"""Sessions and scaled contents against texts that are written out token by token."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvplan.trace import Trace
from kvplan.trace.content import ContentBuilder, unfolded
from kvplan.trace.edit import scale

TURNS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 9), st.integers(0, 5), st.booleans()),
    min_size=1,
    max_size=12,
)
"""(session, tokens that it shares at most, new ones, output, whether the session begins with a common prefix)"""


def told(turns):
    """The same turns as content and as texts: (trace, each request's prompt and output, every token a number)."""
    builder, fresh = ContentBuilder(), itertools.count(1000)
    texts, history = [], {}
    prompts, outputs = [], []
    for session, shared, new, output, common in turns:
        before = history.get(session, [])
        head = [(builder.source("system"), 0, 4)] if common else []
        known = before or list(range(4 * common))
        kept = known[:shared]
        prompt = kept + [next(fresh) for _ in range(new)]
        answer = [next(fresh) for _ in range(output)]
        builder.turn(session, len(prompt), output, shared=min(shared, len(known)), head=head)
        history[session] = prompt + answer
        texts.append((prompt, answer))
        prompts.append(len(prompt))
        outputs.append(output)
    return builder.build(), texts, np.array(prompts), np.array(outputs)


def tokens_of(content, row, prompt, output):
    """(identity, ...) of every token of a request."""
    own = range(content.segment_ptr[row], content.segment_ptr[row + 1])
    known = [
        (int(content.segment_source[s]), int(content.segment_start[s]) + i)
        for s in own
        for i in range(content.segment_tokens[s])
    ][:prompt]
    known += [("own", row, i) for i in range(len(known), prompt)]
    start = 0 if content.output_start is None else int(content.output_start[row])
    source = int(content.output_source[row])
    return known, [(source, start + i) if source >= 0 else ("answer", row, i) for i in range(output)]


def same_partition(content, texts):
    """Whether two tokens are equal in the content exactly where they are in the texts."""
    meant = {}
    for row, (prompt, answer) in enumerate(texts):
        identities = [*itertools.chain(*tokens_of(content, row, len(prompt), len(answer)))]
        for identity, token in zip(identities, prompt + answer, strict=True):
            if meant.setdefault(identity, token) != token:
                return False
    return len(meant) == len(set(meant.values()))


@given(TURNS)
def test_turns_share_what_their_texts_share(turns):
    content, texts, prompts, _ = told(turns)
    assert same_partition(content, texts)
    assert content.covered_tokens().tolist() == prompts.tolist()


@given(TURNS)
def test_outputs_with_sources_of_their_own_tell_the_same(turns):
    content, texts, _, outputs = told(turns)
    apart = unfolded(content, outputs)
    assert same_partition(apart, texts)
    assert apart.output_start is None


@given(TURNS)
def test_rows_that_stand_twice_keep_one_output(turns):
    content, texts, _, outputs = told(turns)
    twice = np.repeat(np.arange(len(texts)), 2)
    apart = unfolded(content.take(twice), outputs[twice])
    assert same_partition(apart, [texts[row] for row in twice])


@given(st.lists(st.integers(1, 6), min_size=2, max_size=9), st.integers(1, 9))
def test_a_session_that_goes_on_is_one_segment_a_turn(lengths, output):
    content, _, _, _ = told([(0, 10**6, new, output, False) for new in lengths])
    assert np.diff(content.segment_ptr).tolist() == [1] * len(lengths)


@given(TURNS, st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.sampled_from([0.5, 1.0, 2.0, 3.0]))
def test_outputs_that_grow_more_than_prompts_are_not_taken_for_what_follows_them(turns, prompt, output):
    """A longer output is new at its end: nothing of a later prompt but what repeats the former output is equal."""
    content, texts, prompts, outputs = told(
        [(session, shared, max(1, new), max(1, answer), common) for session, shared, new, answer, common in turns]
    )
    trace = Trace(np.zeros(len(prompts)), prompts, outputs, content=content)
    scaled = scale(trace, prompt=prompt, output=output)
    for row in range(len(trace)):
        answer = set(tokens_of(scaled.content, row, 0, int(scaled.output_tokens[row]))[1])
        for later in range(row + 1, len(trace)):
            repeated = sum(token in texts[row][1] for token in texts[later][0])
            known = tokens_of(scaled.content, later, int(scaled.prompt_tokens[later]), 0)[0]
            assert sum(token in answer for token in known) <= np.ceil(repeated * prompt) + 1
