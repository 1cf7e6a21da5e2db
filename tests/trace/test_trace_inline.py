"""Requests written out in a scenario."""

from __future__ import annotations

import pytest

from kvplan.errors import InputError
from kvplan.trace import inline_trace, read_trace
from kvplan.trace.sharing import prefix_hits


def test_defaults():
    trace = inline_trace([{"prompt": 512, "output": 128}])
    assert (trace.arrival_s.tolist(), trace.names().tolist(), trace.n.tolist()) == ([0], ["0"], [1])
    assert trace.content is None
    assert trace.session is None


def test_requests_are_sorted_and_keep_their_names():
    trace = inline_trace(
        [
            {"arrival": 2, "prompt": 1, "output": 1},
            {"id": "a", "arrival": 1, "prompt": 2, "output": 1, "priority": -3},
        ]
    )
    assert trace.names().tolist() == ["a", "0"]
    assert trace.priority.tolist() == [-3, 0]


def test_equal_prefixes_are_shared_as_far_as_the_shorter_prompt_goes():
    system = {"id": "system", "tokens": 256}
    trace = inline_trace(
        [{"prompt": p, "output": 1, "prefix": system} for p in (512, 300, 100)] + [{"prompt": 512, "output": 1}]
    )
    assert prefix_hits(trace).tokens.tolist() == [0, 256, 100, 0]


def test_a_later_turn_begins_with_all_of_the_former_one():
    turns = [{"arrival": at, "prompt": p, "output": 10, "session": "s"} for at, p in ((0, 100), (1, 150), (2, 200))]
    trace = inline_trace([*turns, {"arrival": 3, "prompt": 150, "output": 10, "session": "t"}])
    assert prefix_hits(trace).tokens.tolist() == [0, 110, 160, 0]
    assert trace.session.tolist() == [0, 0, 0, 1]


def test_a_session_that_begins_with_a_prefix():
    rows = [{"arrival": 0, "prompt": 100, "output": 5, "prefix": {"id": "p", "tokens": 40}, "session": s} for s in "ab"]
    assert prefix_hits(inline_trace(rows)).tokens.tolist() == [0, 40]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"output": 1}, r"requests\[0\].prompt: is missing"),
        ({"prompt": 0, "output": 1}, "at least 1 token"),
        ({"prompt": 1, "output": -1}, "negative"),
        ({"prompt": True, "output": 1}, "not a number"),
        ({"prompt": 1, "output": 1, "arrival": float("nan")}, "finite"),
        ({"prompt": 1, "output": 1, "arrival": -1}, "seconds from 0"),
        ({"prompt": 1, "output": 1, "promt": 1}, "did you mean 'prompt'"),
        ({"prompt": 1, "output": 1, "n": 0}, "at least 1"),
        ({"prompt": 1, "output": 1, "prefix": 5}, "mapping of id and tokens"),
        ({"prompt": 1, "output": 1, "session": []}, "a name or a number"),
        ({"prompt": 1, "output": 1, "content": [[0, 0, 5]]}, "longer than the prompt"),
        ("a", "is no request"),
    ],
)
def test_impossible_requests(request_, message):
    with pytest.raises(InputError, match=message) as refused:
        inline_trace([request_], "scenario.yaml", [7])
    assert (refused.value.source, refused.value.line) == ("scenario.yaml", 7)


def test_a_turn_shorter_than_its_former_turn_is_impossible():
    with pytest.raises(InputError, match="shorter than the former turn of session 's'"):
        inline_trace([{"prompt": 100, "output": 1, "session": "s"}, {"prompt": 50, "output": 1, "session": "s"}])


def test_no_request():
    with pytest.raises(InputError, match="lists no request"):
        inline_trace([])


def test_errors_of_a_yaml_file_name_the_line(written):
    text = "model: m\nrequests:\n  - {prompt: 5, output: 1}\n  - prompt: 5\n    output: 0\n"
    with pytest.raises(InputError, match=r"requests\[1\].output") as refused:
        read_trace(written(text))
    assert refused.value.line == 4
