# ruff: noqa: E501 - samples and tables read better on one line
"""``kvplan trace`` as people call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from kvplan.commands.trace import app, parse_columns
from kvplan.errors import InputError
from kvplan.trace import read_trace, synthesize

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, stdin: bytes | None = None):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_info_as_json_has_the_keys_that_others_read(data):
    told = json.loads(run("info", data("traces/mooncake/conversation_trace.jsonl"), "--json").stdout)
    assert (told["format"], told["rows"], told["bad_rows"]) == ("mooncake", 12031, 0)
    assert told["span_s"] == pytest.approx(3536.999)
    assert told["prefix_hit_rate"] == pytest.approx(0.366, abs=1e-3)
    for side in ("prompt", "output"):
        assert {"mean", "p50", "p90", "p99", "max"} <= set(told[side])


def test_info_for_a_person_says_what_was_inferred(data):
    shown = run("info", data("traces/mooncake/conversation_trace.jsonl")).stdout
    for part in (
        "12,031 rows",
        "3.401 requests/s",
        "36.6% of 288,500 blocks of 512",
        "time in ms, inferred",
        "prompt tokens",
        "█",
    ):
        assert part in shown


def test_info_of_a_log_tells_the_engine(data):
    shown = run("info", data("formats/startup_lines.log")).stdout
    assert "num gpu blocks: 512" in shown
    told = json.loads(run("info", data("formats/startup_lines.log"), "--json").stdout)
    assert (told["format"], told["rows"], told["facts"]["num_gpu_blocks"]) == ("engine-log", 0, 512)


def test_bad_rows_are_reported_on_standard_error(written):
    path = written("arrival,prompt,output\n0,5,1\n0,x,1\n")
    result = run("info", path, "--on-bad-row", "report")
    assert "bad rows left out   1" in result.stdout
    assert "line 3: prompt: is not a number" in result.stderr


def test_convert_to_standard_output_and_back(data):
    text = run("convert", data("traces/mooncake/mooncake_trace.slice93.jsonl"), "-o", "-", "--to", "mooncake").stdout
    assert len(text.splitlines()) == 93
    assert json.loads(text.splitlines()[0])["hash_ids"] == [0, 1, 2, 3, 4]


def test_a_pipeline_of_commands(data, tmp_path):
    source = data("traces/azure-2023/AzureLLMInferenceTrace_conv.csv")
    run("slice", source, "-o", tmp_path / "part.parquet", "--start", "600", "--end", "1200")
    run("scale", tmp_path / "part.parquet", "-o", tmp_path / "fast.csv", "--rate", "20", "--output", "2")
    run("merge", tmp_path / "part.parquet", tmp_path / "fast.csv", "-o", tmp_path / "both.yaml")
    part, fast, both = (read_trace(tmp_path / name) for name in ("part.parquet", "fast.csv", "both.yaml"))
    assert (part.arrival_s[0], part.span_s < 600) == (0, True)
    assert (len(fast) - 1) / fast.span_s == pytest.approx(20)
    assert fast.output_tokens.sum() == 2 * part.output_tokens.sum()
    assert len(both) == len(part) + len(fast)


def test_synthesize_writes_a_scenario_that_draws_a_like_trace(data, tmp_path):
    source = data("traces/mooncake/synthetic_trace.jsonl")
    result = run(
        "synthesize",
        source,
        "-o",
        tmp_path / "like.yaml",
        "--requests",
        "2000",
        "--model",
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm",
    )
    assert "prefix hit rate (tokens)" in result.stderr
    document = yaml.safe_load((tmp_path / "like.yaml").read_text())
    assert (document["model"], document["gpu"]) == ("llama-3.1-8b", "h100-sxm")
    assert len(synthesize(document["workload"]["synthetic"])) == 2000
    assert len(read_trace(tmp_path / "like.yaml")) == 2000
    run("synthesize", source, "-o", tmp_path / "drawn.jsonl")
    assert len(read_trace(tmp_path / "drawn.jsonl")) == 3993


def test_formats_lists_all(data):
    shown = run("formats").stdout
    assert "mooncake" in shown
    assert "vllm-timed-trace" in shown


def test_columns_option():
    assert parse_columns("arrival=a b,prompt=p") == {"arrival": "a b", "prompt": "p"}
    with pytest.raises(InputError, match="role=NAME"):
        parse_columns("arrival")


def test_the_command_loads_no_heavy_module():
    probe = "import sys, kvplan.commands.trace; print([m for m in ('numpy', 'pandas', 'pyarrow', 'numba', 'yaml') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT).stdout.strip() == "[]"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("convert {file} -o {file}", "is a file that is read"),
        ("slice {file} -o {file}", "is a file that is read"),
        ("scale {file} -o {file} --rate 2", "is a file that is read"),
        ("merge {file} {file} -o {file}", "is a file that is read"),
        ("merge - - -o {folder}/x.csv", "standard input can be read once"),
        ("convert {file} -o {folder}/x.txt", "does not tell the format by its suffix"),
        ("convert {file} -o {folder}/x.csv --to mooncak", "did you mean 'mooncake'"),
        ("convert {file} -o {folder}/x.csv --format azur", "did you mean 'azure'"),
        ("convert {file} -o {folder}/x.jsonl --block-size 0", "at least 1"),
        ("convert {file} -o {folder}/x.jsonl --to guidellm --block-size 16", "guidellm takes 512 only"),
        ("scale {file} -o {folder}/x.csv", "changes nothing"),
        ("scale {file} -o {folder}/x.csv --rate 2 --seed -1", "seed: must be at least 0"),
        ("slice {file} -o {folder}/x.csv --start nan", "is no time"),
        ("synthesize {file} -o {folder}/x.yaml --requests 0", "must be at least 1"),
        ("info {file} --output-tokens 3000000000", "output_tokens: must be at most 2147483647"),
        ("info {file} --hash-block-size 9999999", "block_size: must be at most 1048576"),
        ("synthesize {file} -o {folder}/x.txt", "does not tell the format by its suffix"),
        ("info {file} --seed -1", "seed: must be at least 0"),
    ],
)
def test_odd_arguments_are_refused_before_anything_is_written(written, tmp_path, arguments, message):
    path = written("arrival,prompt,output\n0,5,1\n1,50,10\n", "trace.csv")
    before = path.read_bytes()
    with pytest.raises(InputError, match=message):
        run(*arguments.format(file=path, folder=tmp_path).split())
    assert (path.read_bytes(), [each.name for each in tmp_path.iterdir()]) == (before, ["trace.csv"])


def test_one_request_is_one_request(written, tmp_path):
    path = written("arrival,prompt,output\n0,5,1\n", "trace.csv")
    assert run("convert", path, "-o", tmp_path / "x.jsonl").stderr.endswith("x.jsonl: 1 request, mooncake\n")
    assert "generic, 1 row\n" in run("info", path).stdout


def test_what_was_done_to_the_trace_is_said(written, tmp_path):
    path = written("arrival,prompt,output\n0,5,1\n1,50,10\n", "trace.csv")
    assert "rate scaled to 5 requests/s" in run("scale", path, "-o", tmp_path / "x.csv", "--rate", "5").stderr
    assert "2 lengths cut at 2,147,483,647" in run("scale", path, "-o", tmp_path / "y.csv", "--prompt", "9e8").stderr


@pytest.mark.parametrize(
    "rows",
    [
        '{"session_id": "a", "input_length": 5, "output_length": 1}\n{"session_id": "a", "delay": 9, "input_length": 5}\n',
        '{"session_id": "a", "arrival_time_ns": 5, "sub_requests": [{"input_toks": 9, "output_toks": 2}]}\n',
        "session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\na,0,0,10,5,100\n",
    ],
)
def test_turns_told_by_waits_arrive_open_loop_and_it_is_said(written, rows):
    assert "later turns arrive open-loop: the file gives waits, not arrivals" in run("info", written(rows)).stdout
