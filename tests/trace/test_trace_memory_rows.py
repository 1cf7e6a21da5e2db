"""Short rows with names, sessions and ids of their own: what is kept of each must be few bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.trace.test_trace_fuzz import check_growth, needs_proc

SIZE = 20 << 20
"""Bytes. With half of them a process' fixed part, and how its heap happens to lie, move a figure by half a file."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def short(number):
    """As few characters as tell ``number`` from others."""
    text = _DIGITS[number % 36]
    while number := number // 36:
        text = _DIGITS[number % 36] + text
    return text


def table(header, row):
    """A CSV of ``SIZE`` bytes."""
    lines, size = [header + "\n"], 0
    for number in itertools.count():
        if size >= SIZE:
            return "".join(lines)
        lines.append(row(number) + "\n")
        size += len(lines[-1])


def mooncake(names):
    """Rows of a hundred ids, ``names(0)``, ``names(1)``, ..."""
    return table(
        '{"input_length": 1, "hash_ids": []}',
        lambda n: f'{{"input_length":1600,"hash_ids":[{",".join(names(100 * n + at) for at in range(100))}]}}',
    )


def with_history():
    """Block ids of one digit beside sessions that are told by their history."""
    digits = np.random.default_rng(0).integers(0, 9, 200).tolist()
    row = f'{{"session_id":"b","input_length":10000,"hash_ids":[{",".join(map(str, digits))}]}}'
    return table('{"session_id":"a","input_length":1,"output_length":1}', lambda n: row)


FULL = "arrival,prompt,output,id,priority,n,beam_width,session"
ROUNDS = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"
ROWS = {
    "lengths alone": lambda: table("prompt_tokens,output_tokens", lambda n: "1,1"),
    "no prompt in every second": lambda: table("arrival,prompt,output", lambda n: f"0,{n % 2},1"),
    "names": lambda: table("arrival,prompt,output,id", lambda n: f"0,1,1,{short(n)}"),
    "names, unsorted": lambda: table("arrival,prompt,output,id", lambda n: f"{n % 2},1,1,{short(n)}"),
    "sessions": lambda: table("arrival,prompt,output,session", lambda n: f"0,1,1,{short(n)}"),
    "sessions of two turns": lambda: table(
        "arrival,prompt,output,session", lambda n: f"{n % 2},{1 + 4 * (n % 2)},1,{short(n // 2)}"
    ),
    "sessions of many turns": lambda: table(
        "arrival,prompt,output,session", lambda n: f"0,{1 + n // 100_000 * 2},1,{short(n % 100_000)}"
    ),
    "all columns": lambda: table(FULL, lambda n: f"{n % 2},1,1,{short(n)},1,2,1,{short(n)}"),
    "rounds": lambda: table(ROUNDS, lambda n: f"{short(n)},0,0,0,1,1,0"),
    "rounds that leave some out": lambda: table(ROUNDS, lambda n: "0,0,0,9,1,1,0"),
    "an id a row": lambda: table(
        "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids", lambda n: f"0,1,1,,{n % 10}"
    ),
    "sessions of added lengths": lambda: table(
        '{"session_id":0,"input_length":1}', lambda n: f'{{"session_id":{n},"input_length":1}}'
    ),
    "chats": lambda: table('{"chat_id":0,"input_length":1}', lambda n: f'{{"chat_id":{n},"input_length":1}}'),
    "ids that are texts": lambda: mooncake(lambda n: f'"{short(n)}"'),
    "ids below 0": lambda: mooncake(lambda n: str(-n)),
    "ids beside history": with_history,
}


@needs_proc
@pytest.mark.parametrize("name", ROWS)
def test_short_rows_take_less_than_ten_times_the_file(tmp_path, name):
    path = tmp_path / "rows"
    path.write_text(ROWS[name]())
    check_growth(path)
