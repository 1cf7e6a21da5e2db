"""How a command may end: the code, the one message, and nothing on standard output but results."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InfeasibleError, InputError, KvplanError, ToleranceError
from tests.cli.conftest import ROOT, Ended
from tests.cli.results import FakeResult

Cli = Callable[..., Ended]


def simulator(monkeypatch: pytest.MonkeyPatch, simulate: Callable[..., Any]) -> None:
    """Put ``simulate`` in the place of `kvplan.simulate`."""
    module = types.ModuleType("kvplan.simulation")
    module.simulate = simulate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvplan.simulation", module)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("bad", field="x"), 2),
        (InfeasibleError("does not fit"), 3),
        (ToleranceError("too far"), 4),
        (KvplanError("else"), 1),
        (KeyboardInterrupt(), 130),
        (OSError(28, "No space left on device", "summary.json"), 1),
        (RuntimeError("surprise"), 1),
    ],
)
def test_an_error_is_one_message_and_a_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, kvplan: Cli, scenario_file: Path
) -> None:
    def simulate(*_: Any, **__: Any) -> None:
        raise error

    simulator(monkeypatch, simulate)
    ended = kvplan("simulate", scenario_file)
    assert (ended.code, ended.out) == (code, "")
    assert "Traceback" not in ended.err
    if isinstance(error, KvplanError):
        assert ended.err.endswith(f"\nkvplan: {error}\n")
    if isinstance(error, RuntimeError):
        assert "\nkvplan: RuntimeError: surprise\n" in ended.err
        assert "report it" in ended.err


def test_a_bug_shows_where_it_happened_when_asked(
    monkeypatch: pytest.MonkeyPatch, kvplan: Cli, scenario_file: Path
) -> None:
    def simulate(*_: Any, **__: Any) -> None:
        raise RuntimeError("surprise")

    simulator(monkeypatch, simulate)
    monkeypatch.setenv("KVPLAN_DEBUG", "1")
    with pytest.raises(RuntimeError, match="surprise"):
        kvplan("simulate", scenario_file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("simulat",), "Did you mean 'simulate'"),
        (("simulate",), "Missing argument 'PATH'"),
        (("simulate", "x", "--blok-size", "3"), "--block-size"),
        (("simulate", "x", "--block-size"), "requires an argument"),
        (("simulate", "x", "y"), "unexpected extra argument"),
        (("--verbose",), "No such option"),
        (("simulate", "nowhere.yaml"), "nowhere.yaml: no such file"),
    ],
)
def test_what_is_not_understood_ends_with_2(arguments: tuple[str, ...], words: str, kvplan: Cli) -> None:
    ended = kvplan(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--block-size", "0"), "kvplan: --block-size: must be at least 1 (got 0)\n"),
        (("--block-size", "sixteen"), "kvplan: --block-size: must be a whole number (got 'sixteen')\n"),
        (("--slo", "ttft_s.p99=fast"), "kvplan: --slo ttft_s.p99: must be a number (got 'fast')\n"),
        (("--slo", "ttft_s.p99=1,2"), "kvplan: --slo: must be KEY=VALUE, with commas between (got '2')\n"),
        (("--timing", "constant=1,profile=x"), "kvplan: --timing: takes exactly one of roofline, profile"),
        (
            ("--layout", "pagd"),
            "kvplan: --layout: must be 'paged' or 'contiguous' (got 'pagd')\n  hint: did you",
        ),
        (("--gpu", "{memory: [}"), "kvplan: --gpu:1:"),
    ],
)
def test_a_bad_flag_is_named(flags: tuple[str, ...], message: str, kvplan: Cli, scenario_file: Path) -> None:
    ended = kvplan("simulate", scenario_file, *flags)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(message)


def test_a_place_that_cannot_be_written_is_said_before_the_run(
    tmp_path: Path, kvplan: Cli, scenario_file: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    ended = kvplan("simulate", scenario_file, "-o", tmp_path / "file")
    assert ended.code == 2
    assert ended.err.startswith("kvplan: --output: is a file, not a folder")
    ended = kvplan("simulate", scenario_file, "--steps", tmp_path / "none" / "steps.jsonl")
    assert ended.code == 2
    assert ended.err.startswith("kvplan: --steps: is no file in an existing folder")


def test_a_raw_trace_says_what_it_lacks(tmp_path: Path, kvplan: Cli) -> None:
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,1,1\n")
    ended = kvplan("simulate", tmp_path / "t.csv", "--model", "m")
    assert ended.code == 2
    assert "add --gpu" in ended.err


def test_json_prints_the_summary_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, kvplan: Cli, scenario_file: Path, tmp_path: Path
) -> None:
    simulator(monkeypatch, FakeResult.simulate)
    ended = kvplan("simulate", scenario_file, "--json", "-o", tmp_path / "out")
    assert ended.code == 0
    assert json.loads(ended.out) == FakeResult().summary
    assert "results:" in ended.err
    assert "contiguous: assumed something\n" in ended.err
    assert (tmp_path / "out" / "summary.json").exists()


def test_json_comes_out_when_every_request_was_refused(
    monkeypatch: pytest.MonkeyPatch, kvplan: Cli, scenario_file: Path
) -> None:
    simulator(monkeypatch, lambda *_, **__: FakeResult(refused=True))
    ended = kvplan("simulate", scenario_file, "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["runs"][0]["requests"]["refused"] == 1
    table = kvplan("simulate", scenario_file)
    assert table.code == 0
    assert "Nothing ran: all 1 requests were refused: longer than the pool." in table.out


def test_flags_progress_and_steps_reach_the_simulator(
    monkeypatch: pytest.MonkeyPatch, kvplan: Cli, scenario_file: Path, tmp_path: Path
) -> None:
    log: list[Any] = []

    def simulate(scenario: Any, *, progress: Any, steps: Any) -> FakeResult:
        progress("base", 1, 2)
        log.extend([scenario.cache.block_size, scenario.cache.enable_prefix_caching, steps])
        return FakeResult()

    simulator(monkeypatch, simulate)
    kvplan(
        "simulate",
        scenario_file,
        "--block-size",
        "8",
        "--no-enable-prefix-caching",
        "--steps",
        tmp_path / "f",
    )
    assert log == [8, False, tmp_path / "f"]


def test_keys_of_a_later_release_are_refused_before_anything_runs(kvplan: Cli, scenario_file: Path) -> None:
    ended = kvplan("simulate", scenario_file, "--data-parallel-size", "2")
    assert ended.code == 2
    assert ended.err.startswith("kvplan: --data-parallel-size: more than one replica is not simulated yet")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    schema = subprocess.Popen(
        [sys.executable, "-m", "kvplan", "schema"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert schema.stdout is not None
    schema.stdout.close()
    _, err = schema.communicate(timeout=60)
    assert err == b""
    assert schema.returncode == 1


def test_a_terminal_without_unicode_gets_question_marks_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scenario_file: Path
) -> None:
    scenario_file.write_text(scenario_file.read_text().replace("h100-sxm", "h100–sxm"), encoding="utf-8")
    code = "from kvplan.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    ended = subprocess.run(
        [sys.executable, "-c", code, "simulate", str(scenario_file), "--layout", "–"],
        cwd=ROOT,
        env={"PYTHONIOENCODING": "ascii", "PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "(got '?')" in ended.stderr


def test_a_raw_trace_is_replayed_with_what_its_reader_inferred_said_apart(
    monkeypatch: pytest.MonkeyPatch, kvplan: Cli, tmp_path: Path
) -> None:
    simulator(monkeypatch, lambda scenario, **_: FakeResult(names=(str(scenario.trace().prompt_tokens.tolist()),)))
    (tmp_path / "t.csv").write_text("ts,in,out\n0,5,1\n90,7,1\n")
    ended = kvplan(
        *("simulate", tmp_path / "t.csv", "--model", "m", "--gpu", "g"),
        *("--columns", "arrival=ts,prompt=in,output=out", "--time-unit", "s"),
    )
    assert ended.code == 0
    assert "[5, 7]" in ended.out
    assert ended.err.startswith("trace: ")
    assert ", 2 requests in 90.0 s\n" in ended.err


@pytest.mark.parametrize("flags", [(), ("--format", "azure", "--model", "m", "--gpu", "g")])
def test_standard_input_is_a_scenario_or_with_a_format_a_trace(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, kvplan: Cli
) -> None:
    simulator(monkeypatch, lambda scenario, **_: FakeResult(names=(str(scenario.trace().prompt_tokens.tolist()),)))
    text = "model: m\ngpu: g\nrequests: [{prompt: 5, output: 1}]\n"
    if flags:
        text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,5,1\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    ended = kvplan("simulate", "-", *flags)
    assert (ended.code, "[5]" in ended.out) == (0, True), ended.err
