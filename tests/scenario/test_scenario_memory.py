"""A scenario with as many requests as a trace, or of any other shape, takes less than ten times its file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.scenario import load_scenario

DEPLOYMENT = "model: llama-3.1-8b\ngpu: h100-sxm\n"
JSON = '{"model": "llama-3.1-8b", "gpu": "h100-sxm", '
COUNT = 260_000
PROBE = r"""
import re, sys
from pathlib import Path
import numpy.random, yaml, kvplan.trace
from kvplan.errors import KvplanError
from kvplan.errors import InputError
from kvplan.scenario import load_scenario
def peak_kib():  # not ru_maxrss: that one counts what the parent had when it forked
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
before = peak_kib()
try:
    said = len(load_scenario(sys.argv[1]).trace())
except KvplanError as error:
    assert error.line is not None
    said = error.message
print(peak_kib() - before, said)
"""
ROW, BAD, JSON_ROW = "- {prompt: 1, output: 1}\n", "- {prompt: 1, outputs: 1}\n", '{"prompt": 1, "output": 1}'
SMILE = r"\ud83d\ude00"
SHAPES = {
    "requests.yaml": (DEPLOYMENT + "requests:\n" + ROW * COUNT, str(COUNT)),
    "requests.json": (JSON + '"requests": [' + f"{JSON_ROW}," * COUNT + JSON_ROW + "]}", str(COUNT + 1)),
    "bad.yaml": (DEPLOYMENT + "requests:\n" + BAD * COUNT, "is required"),
    "brackets.yaml": (DEPLOYMENT + "requests: [" + "[]," * 9 * COUNT + "]\n", "must be a mapping"),
    "variants.yaml": (DEPLOYMENT + "variants: [" + "{}," * 9 * COUNT + "]\n", "too large for a scenario"),
    "key.json": (JSON + '"x": [' + "[]," * 9 * COUNT + "1]}", "too large for a scenario"),
    "name.yaml": (DEPLOYMENT + "name: '" + "a" * 30 * COUNT + "\U0001f600'\n", "too large for a scenario"),
    "escapes.json": (JSON + '"name": "' + SMILE * 3 * COUNT + '"}', "nothing is asked of the model"),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
@pytest.mark.parametrize("name", SHAPES)
def test_any_shape_takes_less_than_ten_times_the_file(tmp_path: Path, name: str) -> None:
    text, expected = SHAPES[name]
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", PROBE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120, check=True)
    grown, _, said = done.stdout.strip().partition(" ")
    assert expected in said
    size = path.stat().st_size / 1024
    assert size > 6 << 10
    assert int(grown) < 10 * size, f"{int(grown) / size:.1f} times the file"


def test_a_mistake_in_a_long_list_is_named_with_its_place(tmp_path: Path) -> None:
    good = "  - {prompt: 1, output: 1}\n"
    path = tmp_path / "s.yaml"
    bad = "  - prompt: 1\n    outputs: 1\n    output: 2\n"
    path.write_text(f"{DEPLOYMENT}requests:\n{good * 500}{bad}{good * 500}")
    with pytest.raises(InputError, match=re.escape(f"{path}:505:5: requests[500].outputs: unknown key")):
        load_scenario(path)


def test_requests_are_the_same_however_they_come(tmp_path: Path) -> None:
    text = (
        "- &a {id: 7, prompt: 5, output: 1, prefix: {id: p, tokens: 3}}\n- *a\n- {<<: *a, arrival: 1, priority: -2}\n"
    )
    packed, listed = tmp_path / "packed.yaml", tmp_path / "listed.yaml"
    packed.write_text(f"{DEPLOYMENT}requests:\n{text}")
    listed.write_text(f"{DEPLOYMENT}requests: &r\n{text}")
    one, other = load_scenario(packed), load_scenario(listed)
    assert one.requests == other.requests
    assert one.model_dump() == other.model_dump()
    assert one.to_mapping() == other.to_mapping()
    assert [request.priority for request in one.requests or ()] == [0, 0, -2]
    assert (one.requests or ())[-1].arrival == 1
    assert len((one.requests or ())[1:]) == 2
