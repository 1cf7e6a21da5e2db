"""YAML of any shape takes less than ten times its size."""

from __future__ import annotations

import itertools

import pytest

from tests.trace.test_trace_fuzz import check_growth, grown_kib, needs_proc

SIZE = 13 << 19


def filled(head: str, entries, tail: str = "") -> str:
    """``head``, as many of the ``entries`` as make 6.5 MiB, ``tail``."""
    parts, size = [head], 0
    for entry in entries:
        parts.append(entry)
        size += len(entry)
        if size >= SIZE:
            break
    return "".join([*parts, tail])


def same(entry: str):
    return itertools.repeat(entry)


def numbered(entry: str):
    return (entry.format(n) for n in itertools.count(10_000))


ONE = "requests:\n- {prompt: 1, output: 1}\n"
DENSE = {
    "flow": lambda: filled("requests: [", same("{prompt: 1,output: 1},"), "]"),
    "block": lambda: filled("requests:\n", same("- prompt: 1\n  output: 1\n")),
    "JSON lines": lambda: filled("requests:\n", same('  - {"prompt":1,"output":1}\n')),
    "unsorted": lambda: filled("requests:\n", same("- {prompt: 1,output: 1,arrival: 1}\n- {prompt: 1,output: 1}\n")),
    "sessions": lambda: filled("requests:\n", numbered("- {{prompt: 1, output: 1, session: {}}}\n")),
    "prefixes": lambda: filled("requests:\n", numbered("- {{prompt: 1, output: 1, prefix: {{id: a{}, tokens: 1}}}}\n")),
    "names": lambda: filled("requests:\n", numbered('  - {{"prompt":1,"output":1,"id":"{}"}}\n')),
    "content": lambda: filled("requests:\n", same("- {prompt: 9,output: 1,content: [[0,0,1],[1,0,1]]}\n")),
    "a long line": lambda: filled("requests:\n", same('  - {"prompt":9,"content":[' + "[]," * 340_000 + "1]}\n")),
    "one request": lambda: filled("requests: [{content: [", same("[],"), "]}]"),
    "brackets": lambda: filled("requests: [", same("[],"), "]"),
    "scalars": lambda: filled("requests: [", same("a,"), "]"),
    "another key": lambda: filled(f"{ONE}x: [", same("[],"), "]"),
    "a generator": lambda: filled("workload: {synthetic: {x: [", same("{},"), "]}}"),
    "a wide name": lambda: filled("requests: [{id: '", same("a" * 1024), "\U0001f600', prompt: 1, output: 1}]\n"),
    "empty lines": lambda: filled(ONE, same("\n" * 1024)),
}  # fmt: skip


@needs_proc
@pytest.mark.parametrize("name", DENSE)
def test_dense_yaml_takes_less_than_ten_times_the_file(tmp_path, name):
    path = tmp_path / "dense"
    path.write_text(DENSE[name](), encoding="utf-8")
    check_growth(path)


DRAWN = "requests: 1000000000, arrivals: 1, prompt: {quantiles: {0: 1, 1: 2000}}, output: 100"
BOMBS = {
    "sessions": "sessions: {turns: 1, think_s: 1}",
    "prefixes": "prefixes: [{tokens: 5, share: 0.5}, {tokens: 100, share: 0.5}]",
    "reuse": "reuse: {probability: 0.5, fraction: 1, lag_s: 0}",
    "a table": f"joint: [{', '.join(['[' + '1,' * 399 + '1]'] * 400)}]",
    "a profile": f"n: {{histogram: {{lo: 1, hi: 5, counts: [{'1,' * 90_000}1]}}}}",
}


@needs_proc
@pytest.mark.parametrize("name", BOMBS)
def test_a_few_bytes_ask_for_little_memory(tmp_path, name):
    path = tmp_path / "bomb"
    path.write_text(f"workload: {{synthetic: {{{DRAWN}, {BOMBS[name]}}}}}\n")
    assert grown_kib(path) < 60 << 10
