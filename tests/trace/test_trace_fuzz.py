# ruff: noqa: E501 - samples and tables read better on one line
"""Any bytes give a trace or a KvplanError with a line: no traceback, no hang, nothing executed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.errors import KvplanError
from kvplan.trace import Trace, inline_trace, synthesize
from kvplan.trace.read import ReadOptions, format_names, read_source
from kvplan.trace.source import memory_source

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


def survives(data: bytes, **options) -> None:
    """Read ``data``; whatever comes is a trace or an error that names a line."""
    for policy in ("error", "skip"):
        try:
            trace = read_source(memory_source(data), ReadOptions(on_bad_row=policy, limit=2000, **options))
        except KvplanError as error:
            asked_for = error.field in ("columns", "format")  # the person's words are at fault, not the file
            assert asked_for or error.line is not None, error  # noqa: PT017 - a trace is as good an outcome
        else:
            assert isinstance(trace, Trace)
            assert len(trace)


def seeds() -> list[bytes]:
    """The beginning of every real file: what a fuzzer should start from."""
    folders = [DATA / "formats", DATA / "traces"]
    files = sorted(path for folder in folders if folder.exists() for path in folder.rglob("*") if path.is_file())
    return [path.read_bytes()[:6000] for path in files if path.suffix in (".csv", ".json", ".jsonl", ".prom", ".log")]


SEEDS = seeds() or [b"arrival,prompt,output\n0,5,1\n"]
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([2**63, -1, 1e308, "1", "inf", "2023-11-16 18:15:46"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = sorted(
    [
        "timestamp",
        "input_length",
        "output_length",
        "hash_ids",
        "chat_id",
        "parent_chat_id",
        "session_id",
        "delay",
        "text_input",
        "messages",
        "payload",
        "requests",
        "benchmarks",
        "spans",
        "resourceSpans",
        "input_lens",
        "output_lens",
        "start_times",
        "errors",
        "completed",
        "total_input_tokens",
        "total_output_tokens",
        "request_rate",
        "metadata",
        "metrics",
        "error",
        "info",
        "start_time",
        "input_toks",
        "output_toks",
        "arrival_time",
        "arrival_time_ns",
        "sub_requests",
        "input_tokens_total",
        "prefix_tokens",
        "timing_events",
        "output_tokens",
        "conversations",
        "prompt",
        "arrival",
        "output",
        "prompt_tokens",
        "arrival_s",
        "block_size",
        "t",
        "in",
        "out",
        "type",
        "id",
        "content",
        "token_length",
        "engine_kwargs",
        "backend",
        "input",
        "attributes",
        "img_ids",
        "0",
        "input_tokens",
        "burstiness",
        "duration",
        "tool_duration_ns",
    ]
)
RECORDS = st.dictionaries(st.sampled_from(KEYS), JSON_VALUES, max_size=8)


@settings(RELAXED, max_examples=300)
@given(st.binary(max_size=400))
def test_any_bytes(data):
    survives(data)


@settings(RELAXED, max_examples=400)
@given(st.lists(RECORDS, min_size=1, max_size=4), st.sampled_from(["lines", "array", "one"]))
def test_any_json_with_known_keys(records, shape):
    text = {
        "lines": "\n".join(map(json.dumps, records)),
        "array": json.dumps(records),
        "one": json.dumps(records[0], indent=1),
    }[shape]
    survives(text.encode())


@settings(RELAXED, max_examples=300)
@given(
    st.sampled_from([name for name in format_names() if name not in ("engine-log",)]),
    st.lists(RECORDS, min_size=1, max_size=3),
)
def test_any_json_as_any_format(name, records):
    survives("\n".join(map(json.dumps, records)).encode(), format=name)


@settings(RELAXED, max_examples=400)
@given(st.sampled_from(SEEDS), st.integers(0, 2**32))
def test_real_files_mutated(data, seed):
    rng = random.Random(seed)
    mutated = bytearray(data)
    for _ in range(rng.randint(1, 12)):
        at = rng.randrange(len(mutated) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            mutated[at : at + rng.randint(1, 60)] = b""
        elif kind == 1:
            mutated[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 4)))
        elif kind == 2:
            mutated[at:at] = rng.choice(
                [
                    b"-",
                    b"9" * 30,
                    b"NaN",
                    b'"',
                    b"[",
                    b"{",
                    b"\n",
                    b"\r",
                    b",",
                    b"null",
                    b"1e999",
                    b"\x00",
                    b"0",
                ]
            )
        elif kind == 3:
            other = rng.choice(SEEDS)
            mutated[at:at] = other[: rng.randint(1, 200)]
        else:
            start = rng.randrange(len(mutated) + 1)
            mutated[at:at] = mutated[start : start + rng.randint(1, 100)]
    survives(bytes(mutated))


CELLS = st.sampled_from(
    [
        "0",
        "5",
        "-1",
        "1.5",
        "nan",
        "",
        "x",
        '"',
        "2023-11-16 18:15:46.6805900",
        "1e400",
        "9" * 25,
        "11|22",
        " 7 ",
    ]
)
HEADERS = st.sampled_from(
    [
        "arrival,prompt,output",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids",
        "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms",
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size",
    ]
)


@settings(RELAXED, max_examples=300)
@given(HEADERS, st.lists(st.lists(CELLS, min_size=1, max_size=9), max_size=5))
def test_any_csv_under_known_headers(header, rows):
    survives("\n".join([header, *(",".join(row) for row in rows)]).encode())


@settings(RELAXED, max_examples=200)
@given(st.text(alphabet='vllm:sgrequt_po{}="+Inf.0123456789e \n#TYPEHL', max_size=300))
def test_any_metrics(text):
    survives(f"# TYPE vllm:x gauge\nvllm:request_prompt_tokens_count 5\n{text}\n".encode())


@settings(RELAXED, max_examples=200)
@given(
    st.text(max_size=120)
    | st.from_regex(r"requests:\n( *- ?[\[{]?[a-z]*:? ?[&*!|>\[{0-9]*[}\]]?\n){1,5}", fullmatch=True)
)
def test_any_yaml(text):
    survives(f"requests:\n{text}".encode())
    survives(text.encode(), format="scenario")


@settings(RELAXED, max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "requests",
                "arrivals",
                "prompt",
                "output",
                "joint",
                "prefixes",
                "reuse",
                "sessions",
                "n",
                "seed",
                "max_total",
            ]
        ),
        JSON_VALUES | st.integers(1, 50),
        max_size=8,
    )
)
def test_any_synthetic_description(spec):
    spec = {
        key: min(value, 1000) if key == "requests" and isinstance(value, int) else value for key, value in spec.items()
    }
    with contextlib.suppress(KvplanError):
        synthesize(spec)


@settings(RELAXED, max_examples=200)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "arrival",
                    "prompt",
                    "output",
                    "priority",
                    "prefix",
                    "session",
                    "n",
                    "beam_width",
                    "content",
                    "output_content",
                ]
            ),
            JSON_VALUES | st.integers(1, 50),
            max_size=8,
        )
        | JSON_VALUES,
        max_size=3,
    )
)
def test_any_inline_requests(requests):
    with contextlib.suppress(KvplanError):
        inline_trace(requests)


# -- what must not happen ---------------------------------------------------------------------------------------


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("kind", ["pickle", "yaml", "python", "numpy"])
def test_nothing_in_a_file_is_executed(tmp_path, kind):
    mark = tmp_path / "executed"
    payload = {
        "pickle": pickle.dumps(Touch(mark)),
        "yaml": f"requests: !!python/object/apply:builtins.open ['{mark}', 'w']\n".encode(),
        "python": f"requests:\n  - {{prompt: !!python/object/apply:os.system ['touch {mark}'], output: 1}}\n".encode(),
        "numpy": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
        + b" " * 50
        + b"\n"
        + pickle.dumps(Touch(mark)),
    }[kind]
    survives(payload)
    assert not mark.exists()


def test_a_scenario_opens_no_other_file(tmp_path):
    (tmp_path / "secret.csv").write_text("arrival,prompt,output\n0,5,1\n")
    survives(f"workload: {{file: {tmp_path}/secret.csv}}\n".encode())
    with pytest.raises(KvplanError, match="neither requests nor a synthetic workload"):
        read_source(memory_source(f"workload: {{file: {tmp_path}/secret.csv}}\n".encode()), ReadOptions())


BOMBS = {
    "lists": b"[" + b"[]," * 400_000 + b"[]]",
    "objects": b"[" + b"{}," * 400_000 + b"{}]",
    "deep": b'{"a":' * 300_000,
    "numbers": b'{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [' + b"1," * 500_000 + b"1]}\n",
    "digits": b'{"timestamp": 0, "input_length": ' + b"9" * 1_000_000 + b"}\n",
    "long line": b"arrival,prompt,output\n" + b"9" * 1_000_000,
    "commas": b"arrival,prompt,output\n" + b"," * 1_000_000,
    "quotes": b'arrival,prompt,output\n"' + b"0,5,1\n" * 200_000,
    "yaml": b"requests: [" + b"[" * 100_000,
    "aliases": b"requests:\n- &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(b"- &%c [%s]\n" % (98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(8)),
    "a session": b'{"session_id":"a","input_length":1,"output_length":1}\n' * 30_000,
    "count": b'# TYPE vllm:a gauge\nvllm:request_prompt_tokens_bucket{le="9"} 1e17\nvllm:request_prompt_tokens_count 1e17\n',
    "completed": b'{"backend": "vllm", "completed": 2000000000, "total_input_tokens": 2147483647, "total_output_tokens": 5}',
    "buckets": b"# TYPE vllm:a gauge\nvllm:request_prompt_tokens_count 1e17\n" + b"".join(b'vllm:request_prompt_tokens_bucket{le="%d"} 1\n' % n for n in range(20_000)),
}  # fmt: skip
PROBE = r"""
import re, sys
from pathlib import Path
import numpy.random, pyarrow.csv, pyarrow.compute, yaml
from kvplan.errors import KvplanError
from kvplan.trace import read_trace
def peak_kib():  # not ru_maxrss: that one counts what the parent had when it forked
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
before = peak_kib()
try:
    read_trace(sys.argv[1], limit=None)
except KvplanError as error:
    assert error.line is not None
print(peak_kib() - before)
"""


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")


@needs_proc
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_take_neither_long_nor_much_memory(tmp_path, name):
    path = tmp_path / "bomb"
    path.write_bytes(BOMBS[name])
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(path)], capture_output=True, text=True, cwd=root, timeout=120
    )
    assert done.returncode == 0, done.stderr
    grown_kib = int(done.stdout)
    size_kib = max(path.stat().st_size / 1024, 6 << 10)  # 60 MiB are allowed to a file of any size
    assert grown_kib < 10 * size_kib, f"{grown_kib} KiB for a file of {path.stat().st_size // 1024} KiB"


@needs_proc
def test_large_files_are_streamed(tmp_path):
    """A CSV of 60 MB whose columns take 24 MB: far less than the file is held at once."""
    path = tmp_path / "large.csv"
    row = "{},100,5," + "x" * 40 + "\n"
    with path.open("w") as file:
        file.write("arrival,prompt,output,comment\n")
        file.writelines(row.format(n) for n in range(1_000_000))
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(path)], capture_output=True, text=True, cwd=root, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4 * path.stat().st_size / 1024


def test_standard_input_of_any_bytes(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(os.urandom(4096))

    monkeypatch.setattr(sys, "stdin", Stdin)
    from kvplan.trace import read_trace

    with pytest.raises(KvplanError):
        read_trace("-")
