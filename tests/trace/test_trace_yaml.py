"""YAML read event by event: the values that PyYAML makes, and what is refused, with its line."""

from __future__ import annotations

import io

import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.trace import read_trace
from kvplan.trace.read import ReadOptions, read_source
from kvplan.trace.source import memory_source
from kvplan.trace.yaml_values import YamlValues
from kvplan.yaml_events import YamlEvents

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=300)
SCALARS = [
    *("1", "-7", "+3", "0", "010", "0x1F", "0o17", "0b101", "1_000", "1:30", "1:30:30.5", "190:20:30", "''", "~"),
    *("1.5", "1e3", "1.5e+3", ".5", "5.", ".inf", "-.INF", ".nan", "null", "Null", "true", "No", "on", "y"),
    *("2024-02-29", "2024-02-30", "2001-12-14t21:59:43.10-05:00", "2001-12-14 21:59:43", "abc", "a b", "a#b", "é😀"),
    *("'it''s'", '"a\\tb\\u00e9\\x41"', '"1"', "'null'", '"two\n    lines"', "'two\n    lines'", "two\n    lines"),
    *("!!str 5", "!!int '5'", "!!float 5", "!!bool no", "!!null ''", "!!binary aGk=", "!!timestamp 2024-01-01"),
    *("! 5", "! '5'", "!!int x", "!!bool x", "!!float x", "!!timestamp x", "!!int ''", "!own 5", "="),
    *("!!python/none ''", "&a 5", "!!seq 5", "!!set 5"),
]  # fmt: skip
KEYS = st.sampled_from(
    ["prompt", "output", "id", "'quoted'", "5", "1.0", "1", "true", "<<", "=", "'<<'", "~", "!!str ab"]
)
FLOW = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(KEYS, inner), max_size=3, unique_by=lambda pair: pair[0]).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=8,
)
BLOCK_SCALARS = st.sampled_from(
    ["|\n      a\n       b\n", ">\n      a\n      b\n\n      c\n", "|-\n      1\n", ">+\n      x\n\n"]
)
ENTRIES = st.lists(st.tuples(KEYS, FLOW | BLOCK_SCALARS), min_size=1, max_size=4, unique_by=lambda pair: pair[0])
ITEMS = FLOW.map(lambda text: f"  - {text}\n") | ENTRIES.map(
    lambda pairs: "  - " + "    ".join(f"{key}: {value.rstrip(' ')}\n" for key, value in pairs)
)
DOCUMENTS = st.lists(ITEMS | st.just("  # a comment\n"), min_size=1, max_size=4).map(
    lambda items: "requests:\n" + "".join(items)
)


def values(text: str):
    data = text.encode()
    source = memory_source(data)
    with YamlEvents(io.BytesIO(data), "s", source.lines) as events:
        value = YamlValues(events).value(events.first())
        events.end()
    return value


@RELAXED
@given(DOCUMENTS)
@example("requests:\n  - {a: 1, b: 2, a: 3, 'a': 4}\n")
@example("requests:\n  - {b: 3, <<: {a: 1, b: 2}}\n  - {<<: {<<: {a: 1}, a: 2}}\n")
@example("requests:\n  - {<<: 5}\n")
@example("requests:\n  - {[1, 2]: 5}\n")
def test_values_are_those_of_pyyaml(text):
    assume(text.count("<<:") < 2 and "<<: [" not in text)  # its releases differ in which of several equal keys wins
    assume(text.count("&a") < 2)  # an anchor that nobody refers to is nothing
    try:
        expected = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError):  # PyYAML stumbles over some
        with pytest.raises(InputError) as refused:
            values(text)
        assert refused.value.line is not None
        return
    assert repr(values(text)) == repr(expected)


def test_of_several_that_are_merged_the_first_wins_as_yaml_says():
    assert values("{<<: [{aa: 1}, {aa: 2, bb: 2}], cc: 3}") == {"aa": 1, "bb": 2, "cc": 3}


ROW = "- {prompt: 1, output: 1}\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (f"a: &a 5\nb: *a\nrequests:\n{ROW}", 2, "alias"),
        (f"requests:\n{ROW}- *a\n", 3, "alias"),
        (f"requests:\n- &a {{prompt: 1, output: 1}}\n{ROW}- *a\n", 4, "alias"),
        (f"requests:\n{ROW}x: 1\nrequests:\n{ROW}", 4, "requests: stands twice"),
        (f"requests:\n{ROW}<<: {{a: 5}}\n", 3, "merge key"),
        (f"requests:\n{ROW}--- {{}}\n", 3, "more than one document"),
        (f"requests:\n{ROW}x: [1\n", 4, "not YAML"),
        (f"requests:\n{ROW}x: '\x01'\n", 3, "control characters"),
        ("x: 1\nrequests: {a: 1}\n", 2, "requests: is not a list"),
        ("x: 1\nrequests: 5\n", 2, "requests: is not a list"),
        ("requests: []\n", 1, "lists no request"),
        (f"requests: !!set\n{ROW}", 1, "tag"),
        (f"requests:\n{ROW}- !!omap [a: 1]\n", 3, "tag"),
        (f"requests:\n{ROW}- {{prompt: 2024-13-01, output: 1}}\n", 3, "no value of the tag"),
        (f"requests:\n{ROW}- {{prompt: 0x{'f' * 500}, output: 1}}\n", 3, "more than 400 characters"),
        (f"requests:\n{ROW}- {{prompt: 1{':59' * 500}, output: 1}}\n", 3, "more than 400 characters"),
        (f"requests:\n{ROW}- {{output: 1, id: [{'{}, ' * 200_000}]}}\n", 3, "too large for YAML"),
        (f"requests:\n{ROW}- {{output: 1, id: {'a' * 4_000_000}}}\n", 3, "too large for YAML"),
        (f"requests:\n{ROW}x:\n{'  [' * 101}{']' * 101}\n", 4, "nested too deeply"),
        (f"requests:\n{ROW}- {'[' * 101}{']' * 101}\n", 3, "nested too deeply"),
        ("%TAG !a! a\n" + "".join(f"%TAG !{n}! a\n" for n in range(99)) + f"---\nrequests:\n{ROW}", 65, "%TAG"),
    ],
)  # fmt: skip
def test_refused_with_its_line(text, line, words):
    with pytest.raises(InputError, match=words) as refused:
        read_source(memory_source(text.encode()), ReadOptions(format="scenario"))
    assert refused.value.line == line


def test_bytes_that_are_no_text_are_told_by_line_and_column(written):
    with pytest.raises(InputError, match="not UTF-8") as refused:
        read_trace(written(b"requests:\n- {prompt: 1, output: 1}\nx: a\xff\n"))
    assert (refused.value.line, refused.value.column) == (3, 5)


def test_keys_beside_the_requests_are_passed_over_whatever_their_size(written):
    trace = read_trace(written(f"workload: null\nrequests:\n{ROW}model: [{'{}, ' * 300_000}]\nname: !own {{a: 5}}\n"))
    assert trace.prompt_tokens.tolist() == [1]


@pytest.mark.parametrize("text", [ROW, '  - {"prompt": 1, "output": 1}\n'])
def test_a_limit_takes_the_first_requests_and_reads_no_further(written, text):
    path = written("requests:\n" + 5 * text + text.replace("1", "x"))
    assert len(read_trace(path, limit=5)) == 5
    with pytest.raises(InputError, match="not a number"):
        read_trace(path, limit=6)


@pytest.mark.parametrize(
    "last",
    [
        "  - {prompt: 3, output: 1}\n",
        "  # three\n  - prompt: 3\n    output: 1\n",
        '  - {"prompt": 3,\n     "output": 1}\n',
    ],
)
def test_json_lines_and_other_yaml_may_stand_in_one_list(written, last):
    text = '  - {"prompt": 2, "output": 1, "id": "a"}\n'
    trace = read_trace(written(f"requests:\n{text}{last}"))
    assert trace.prompt_tokens.tolist() == [2, 3]
    assert trace.names().tolist() == ["a", "1"]


def test_a_line_of_json_that_is_too_long_for_one_line_is_read_as_yaml(written):
    segments = ", ".join(f"[{n}, 0, 1]" for n in range(49_000))
    trace = read_trace(
        written(f'requests:\n  - {{"prompt": 50000, "output": 1, "content": [{segments}{" " * 500_000}]}}\n')
    )
    assert trace.content.covered_tokens().tolist() == [49_000]


# -- generators -------------------------------------------------------------------------------------------------

GENERATOR = "workload: {{synthetic: {{requests: {}, arrivals: 1, prompt: 5, output: 5}}}}\n"


@pytest.mark.parametrize("asked", ["1000000000", "'1000000000'", "1e9"])
def test_a_few_bytes_ask_for_no_more_requests_than_others_do(written, asked):
    trace = read_trace(written(GENERATOR.format(asked)))
    assert len(trace) == 200_000
    assert "200,000 of 1,000,000,000 requests drawn (--limit draws up to 10,000,000)" in trace.origin.notes


def test_a_limit_draws_more_and_takes_fewer(written):
    path = written(GENERATOR.format(250_000))
    assert len(read_trace(path, limit=300_000)) == 250_000
    whole, part = read_trace(path), read_trace(path, limit=100)
    assert part.arrival_s.tolist() == whole.arrival_s[:100].tolist()
