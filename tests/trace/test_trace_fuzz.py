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

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.errors import KvplanError
from kvplan.trace import Trace, inline_trace, read_trace, synthesize
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


def grown_kib(path):
    """What reading the file adds to the memory of a process of its own, at its peak."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(path)], capture_output=True, text=True, cwd=root, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def check_growth(path):
    """Reading the file takes less than ten times its size, which is more than any file may take."""
    size = path.stat().st_size / 1024
    assert size > 6 << 10
    grown = grown_kib(path)
    assert grown < 10 * size, f"{grown / size:.1f} times the file"


@needs_proc
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_take_neither_long_nor_much_memory(tmp_path, name):
    path = tmp_path / "bomb"
    path.write_bytes(BOMBS[name])
    grown = grown_kib(path)
    size_kib = max(path.stat().st_size / 1024, 6 << 10)  # 60 MiB are allowed to a file of any size
    assert grown < 10 * size_kib, f"{grown} KiB for a file of {path.stat().st_size // 1024} KiB"


def hash_rows(least, most, separator, per_row, *, head="", unsorted=False):
    """Mooncake rows, 8 MB of them, whose ids are drawn from ``least`` to ``most``."""
    drawn = np.random.default_rng(0)
    lines, size, time = [head], 0, 1
    while size < 8 << 20:
        ids = separator.join(map(str, drawn.integers(least, most + 1, per_row).tolist()))
        time = int(drawn.integers(1000)) if unsorted else time + 1
        times = f'"timestamp": {time}, "input_length": {16 * per_row}, "output_length": 1'
        lines.append(f'{{{times}, "hash_ids": [{ids}]}}\n')
        size += len(lines[-1])
    return "".join(lines)


def weka(sessions, rows):
    """kv-cache-tester's documents: ids that hold within their session."""
    drawn = np.random.default_rng(0)

    def request(at):
        return {"t": at, "in": 12800, "out": 1, "hash_ids": drawn.integers(10, 100, 200).tolist()}

    documents = ({"id": n, "block_size": 64, "requests": [request(at) for at in range(rows)]} for n in range(sessions))
    return "".join(json.dumps(document, separators=(",", ":")) + "\n" for document in documents)


def vidur_rows():
    ids = "|".join(map(str, np.random.default_rng(0).integers(10, 100, 200).tolist()))
    head = "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids\n"
    return head + "".join(f"{n},3200,1,7,{ids}\n" for n in range(14_000))


ONE_HUGE_ID = '{"timestamp": 0, "input_length": 16, "output_length": 1, "hash_ids": [1099511627776]}\n'
DENSE_IDS = {
    "two digits, many rows": lambda: hash_rows(10, 99, ", ", 200),
    "two digits, few rows": lambda: hash_rows(10, 99, ", ", 400_000),
    "two digits, one row": lambda: hash_rows(10, 99, ", ", 3_000_000),
    "two digits without spaces, many rows": lambda: hash_rows(10, 99, ",", 200),
    "two digits without spaces, few rows": lambda: hash_rows(10, 99, ",", 400_000),
    "two digits without spaces, unsorted": lambda: hash_rows(10, 99, ",", 200, unsorted=True),
    "two digits without spaces, one row": lambda: hash_rows(10, 99, ",", 3_000_000),
    "one digit, many rows": lambda: hash_rows(0, 9, ",", 200),
    "one digit, one row": lambda: hash_rows(0, 9, ",", 5_000_000),
    "three digits, one row": lambda: hash_rows(300, 999, ",", 2_500_000),
    "one huge id": lambda: hash_rows(10, 99, ",", 200, head=ONE_HUGE_ID),
    "negative": lambda: hash_rows(-9, -1, ",", 200),
    "sparse": lambda: hash_rows(10**6, 10**7, ",", 200),
    "sessions": lambda: weka(150, 90),
    "one session": lambda: weka(1, 14_000),
    "a table": vidur_rows,
    "lengths alone": lambda: '{"input_length":5}\n' * 500_000,
    "short rows": lambda: "arrival,prompt,output\n" + "0,5,1\n" * 1_500_000,
    "short rows, unsorted": lambda: "arrival,prompt,output\n" + "1,50,1\n0,50,1\n" * 650_000,
}


@needs_proc
@pytest.mark.parametrize("name", DENSE_IDS)
def test_dense_ids_take_less_than_ten_times_the_file(tmp_path, name):
    path = tmp_path / "dense"
    path.write_text(DENSE_IDS[name]())
    assert path.stat().st_size > 7 << 20
    check_growth(path)


@needs_proc
def test_a_clients_distributions_ask_for_no_more_requests_than_their_files_bear(tmp_path):
    """Millions a day, in a few hundred bytes and in four megabytes."""
    windows = 2000
    for name, lengths in (("1", 1), ("2", 100_000)):
        rates = "".join(f"{600 * at},10,1,,0,0\n" for at in range(windows))
        pmf = "{" + ", ".join(f"{at + 1}: 0.00001" for at in range(lengths)) + "}"
        document = {"0": {"input_tokens": pmf, "output_tokens": pmf}}
        (tmp_path / f"chunk-{name}-trace.csv").write_text(rates)
        (tmp_path / f"chunk-{name}-dataset.json").write_text(json.dumps(document))
        path = tmp_path / f"chunk-{name}-dataset.json"
        size_kib = max((path.stat().st_size + len(rates)) / 1024, 6 << 10)
        assert grown_kib(path) < 10 * size_kib
        trace = read_trace(path)
        told = next(note for note in trace.origin.notes if note.startswith("cut at"))
        assert f"{len(trace):,} of about 12,000,000 requests" in told
        assert "--limit" in told
        assert len(read_trace(path, limit=300_000)) == 300_000


@needs_proc
def test_large_files_are_streamed(tmp_path):
    """A CSV of 60 MB whose columns take 24 MB: far less than the file is held at once."""
    path = tmp_path / "large.csv"
    row = "{},100,5," + "x" * 40 + "\n"
    with path.open("w") as file:
        file.write("arrival,prompt,output,comment\n")
        file.writelines(row.format(n) for n in range(1_000_000))
    assert grown_kib(path) < 4 * path.stat().st_size / 1024


def test_standard_input_of_any_bytes(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(os.urandom(4096))

    monkeypatch.setattr(sys, "stdin", Stdin)
    with pytest.raises(KvplanError):
        read_trace("-")
