"""Whatever a file holds, it is a scenario or a refusal."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.scenario import Scenario
from kvplan.scenario.document import parse_document
from kvplan.scenario.origin import Origin, dotted, steps

GOOD = b"""model: m
gpu: {name: g, memory_bytes: 1}
cache: &c {block_size: 16, layout: paged}
slo: {ttft_s: {p99: 2.0}}
timing: {constant: 1e-3}
requests: [{id: a, arrival: 0.0, prompt: 512, output: 128, prefix: {id: s, tokens: 3}}]
variants: [{name: v, cache: {<<: *c, layout: contiguous}}]
sweep: {cache.block_size: [1, 8]}
"""
WORDS = st.sampled_from(
    [
        *b"{ } [ ] - ? | # ' \\ud800 null -1 .nan 1e999 999999999999999999999".split(),
        *(b": ", b", ", b"\n", b"\t", b'"', b"&c ", b"*c", b"<<: ", b"!!x ", b"\xff", b"\x00"),
        *(b"variants: ", b"sweep: ", b"model: ", b"workload: "),
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


@settings(max_examples=400, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 6), WORDS), max_size=4), is_json=st.booleans()
)
@example(edits=[], is_json=False)
def test_any_bytes_are_a_scenario_or_an_input_error(edits: list[tuple[int, int, bytes]], is_json: bool) -> None:
    data = GOOD
    for place, cut, word in edits:
        data = data[:place] + word + data[place + cut :]
    with contextlib.suppress(InputError):
        document = parse_document(data, source="s", is_json=is_json)
        Scenario.build(document.value, Origin(document)).runs()


@settings(max_examples=300, deadline=None)
@given(key=st.sampled_from(sorted(Scenario.model_fields)), value=ANYTHING)
def test_any_value_of_any_key_is_taken_or_refused_by_name(key: str, value: Any) -> None:
    refusal = None
    try:
        scenario = Scenario.build({"model": "m", "gpu": "g", key: value})
    except InputError as error:
        refusal = error
    if refusal is None:
        assert Scenario.build(scenario.to_mapping()).model_dump() == scenario.model_dump()
    else:
        assert (refusal.field or "").startswith(key)


@given(
    st.lists(st.from_regex(r"[a-z_]+", fullmatch=True) | st.integers(0, 99), min_size=1).filter(
        lambda p: isinstance(p[0], str)
    )
)
def test_a_path_survives_being_written(path: list[str | int]) -> None:
    assert steps(dotted(tuple(path))) == tuple(path)
