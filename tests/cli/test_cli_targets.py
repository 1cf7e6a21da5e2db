# ruff: noqa: E501 - tables read better on one line
"""Nothing that a person had on disk is lost: what every command does where its output would lie."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kvplan.cli import COMMANDS
from kvplan.commands import written
from kvplan.files import is_signed, signed
from kvplan.memory.overrides import MemoryOverrides, save_overrides
from kvplan.report import forms
from kvplan.trace import read_trace
from tests.cli.conftest import Ended

Cli = Callable[..., Ended]

SCENARIO = """model: llama-3.1-8b
gpu: h100-sxm
requests: [{arrival: 0.0, prompt: 512, output: 12}, {arrival: 0.5, prompt: 64, output: 30}]
"""

# What is typed, with {x} for the target; the flag that names it; the files that come of it (of a folder's).
WRITES = {
    "simulate": ("simulate {scenario} -o {x}", "--output", list(written.RESULTS)),
    "simulate --steps": ("simulate {scenario} --steps {x}", "--steps", None),
    "engine": ("engine {scenario} -o {x}", "--output", list(written.RESULTS)),
    "engine --steps": ("engine {scenario} --steps {x}", "--steps", None),
    "diagnose": ("diagnose {scenario} -o {x}", "--output", list(written.DIAGNOSIS)),
    "plan": ("plan {scenario} --gpu l40s --max-gpus 1 -o {x}", "--output", list(written.PLAN)),
    "sweep": ("sweep {scenario} --workers 1 --set cache.block_size=16,32 -o {x}", "--output", list(written.SWEEP)),
    "validate": ("validate --observed {observed} --model llama-3.1-8b --gpu h100-sxm -o {x}", "--output", list(written.VALIDATION)),
    "validate a replay": ("validate {scenario} -o {x}", "--output", list(written.VALIDATION)),
    "calibrate": ("calibrate --model llama-3.1-8b -o {x}", "--output", None),
    "profile import": ("profile import {profiles} -o {x}", "--output", None),
    "profile show": ("profile show {profile} -o {x}", "--output", None),
    "reconcile": ("reconcile {log} --save {x}", "--save", None),
    "report": ("report {results} -o {x}", "--output", None),
    "report, simulated": ("report {scenario} -o {x}", "--output", None),
    "report --format json": ("report {results} --format json -o {x}", "--output", None),
    "report --format csv": ("report {results} --format csv -o {x}", "--output", None),
    "report --format md": ("report {results} --format md -o {x}", "--output", None),
    "report --format png": ("report {results} --format png -o {x}", "--output", None),
    "report --perfetto": ("report {results} -o - --perfetto {x}", "--perfetto", None),
    "trace convert": ("trace convert {trace} --to mooncake -o {x}", "--output-file", None),
    "trace convert to Parquet": ("trace convert {trace} --to parquet -o {x}", "--output-file", None),
    "trace slice": ("trace slice {trace} --to vidur --count 3 -o {x}", "--output-file", None),
    "trace scale": ("trace scale {trace} --to aiperf --speed 2 -o {x}", "--output-file", None),
    "trace merge": ("trace merge {trace} {trace} --to yaml -o {x}", "--output-file", None),
    "trace synthesize": ("trace synthesize {trace} --to mooncake -o {x}", "--output-file", None),
    "trace synthesize, a generator": ("trace synthesize {trace} -o {x}.yaml", "--output-file", None),
}  # fmt: skip
OTHERS_WRITE_IT_TOO = {name for name in WRITES if name.startswith("trace ")} - {"trace convert to Parquet"}
NEEDS_MORE = {"engine", "engine --steps", "calibrate", "validate a replay", "report --format png"}
"""What takes torch, a measurement or a browser to get done: only refusals are tried here."""


def commands_with(flags: set[str]) -> set[str]:
    """The commands that have one of these flags, by the words that call them."""
    found = set()
    for name, target in COMMANDS.items():
        command = target.load(name)
        inner = getattr(command, "commands", None)
        for words, one in ((f"{name} {part}", each) for part, each in inner.items()) if inner else ((name, command),):
            if any(flags & set(parameter.opts) for parameter in one.params):
                found.add(words)
    return found


def test_these_are_all_the_commands_that_write() -> None:
    writing = commands_with({"-o", "--save", "--perfetto"})
    assert writing == commands_with({"--overwrite"})
    assert writing == {
        words for words in writing if any(command.startswith(words + " ") for command, _, _ in WRITES.values())
    }
    assert writing == {
        words for words in writing if any(command.startswith(words + " ") for command, _ in READ.values())
    }
    assert len(writing) == 16


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> dict[str, Path]:
    """What the commands read."""
    from kvplan.cli import main

    folder = tmp_path_factory.mktemp("read")
    (folder / "s.yaml").write_text(SCENARIO)
    (folder / "t.csv").write_text("arrival,prompt,output\n" + "".join(f"{n},{100 + n},5\n" for n in range(30)))
    assert main(["simulate", str(folder / "s.yaml"), "-o", str(folder / "results")]) == 0
    profiles = next((shared_data / "profiles").glob("llmservingsim*"))
    assert main(["profile", "import", str(profiles), "-o", str(folder / "p.json")]) == 0
    return {
        "scenario": folder / "s.yaml",
        "trace": folder / "t.csv",
        "results": folder / "results",
        "profiles": profiles,
        "profile": folder / "p.json",
        "observed": shared_data / "formats" / "vllm_bench_serve_detailed.json",
        "log": shared_data / "formats" / "startup_lines.log",
    }


def typed(command: str, things: dict[str, Path], target: Path) -> list[str]:
    return [word.format(x=target, **things) for word in command.split()]


def in_the_way(name: str, target: Path) -> list[Path]:
    """The files that the command would write."""
    command, _, files = WRITES[name]
    if files is not None:
        target.mkdir(exist_ok=True)
        return [target / file for file in files]
    return [target.with_name(target.name + ".yaml") if "{x}.yaml" in command else target]


@pytest.mark.parametrize("name", WRITES)
def test_what_kvplan_did_not_write_is_left_alone(
    name: str, kvplan: Cli, things: dict[str, Path], tmp_path: Path
) -> None:
    command, flag, _ = WRITES[name]
    for file in in_the_way(name, tmp_path / "mine"):
        for content in (
            b"mine",
            b'{"mine": true}',
            b"<head>mine",
            b"\x89PNG\r\n\x1a\nmine",
            b"PAR1minePAR1",
            b"\xff\xfe\0",
        ):
            file.write_bytes(content)
            ended = kvplan(*typed(command, things, tmp_path / "mine"))
            assert (ended.code, ended.out) == (2, "")
            assert f"kvplan: {flag}: " in ended.err
            assert str(file) in ended.err
            assert "choose another name, or replace it with --overwrite" in ended.err
            assert file.read_bytes() == content
        file.unlink()


@pytest.mark.parametrize("name", [name for name in WRITES if name not in NEEDS_MORE])
def test_its_own_file_is_replaced_and_any_other_when_asked(
    name: str, kvplan: Cli, things: dict[str, Path], tmp_path: Path
) -> None:
    command = WRITES[name][0]
    words = typed(command, things, tmp_path / "out")
    targets = in_the_way(name, tmp_path / "out")
    if name != "sweep":  # its folder's mark says that its rows are there
        for file in targets:
            file.write_text("mine")
    else:
        targets[1].write_text("mine")
    ended = kvplan(*words, "--overwrite")
    assert ended.code == 0, ended.err
    assert all(file.read_bytes()[:4] != b"mine" for file in targets if file.exists())
    again = kvplan(*words)
    if name not in OTHERS_WRITE_IT_TOO:
        assert again.code == 0, again.err
        return
    assert again.code == 2
    assert "may be another's work" in again.err
    assert kvplan(*words, "--overwrite").code == 0


READ = {
    "simulate": ("simulate {results}/summary.json -o {results}", "results/summary.json"),
    "simulate --steps": ("simulate {scenario} --steps {scenario}", "s.yaml"),
    "simulate a trace": ("simulate {trace} --model llama-3.1-8b --gpu h100-sxm --steps {trace}", "t.csv"),
    "simulate by a profile": ("simulate {scenario} --timing profile={profile} --steps {profile}", "p.json"),
    "engine": ("engine {results}/summary.json -o {results}", "results/summary.json"),
    "diagnose": ("diagnose {results}/summary.json -o {results}", "results/summary.json"),
    "plan": ("plan {folder}/plan.json -o {folder}", "plan.json"),
    "sweep": ("sweep {folder}/sweep.json --set cache.block_size=16,32 -o {folder}", "sweep.json"),
    "validate": ("validate --observed {folder}/validation.json -o {folder}", "validation.json"),
    "validate a replay": ("validate {folder}/validation.json -o {folder}", "validation.json"),
    "calibrate": ("calibrate --model {folder}/config.json -o {folder}/config.json", "config.json"),
    "profile import": ("profile import --system h200_sxm --model {folder}/config.json -o {folder}/config.json", "config.json"),
    "profile show": ("profile show {profile} -o {profile}", "p.json"),
    "reconcile": ("reconcile {folder}/log --save {folder}/log", "log"),
    "report": ("report {results} --format json -o {results}/summary.json", "results/summary.json"),
    "report, simulated": ("report {scenario} --format md -o {scenario}", "s.yaml"),
    "report --perfetto": ("report {results} -o - --perfetto {results}/requests.parquet", "results/requests.parquet"),
    "trace convert": ("trace convert {trace} -o {trace}", "t.csv"),
    "trace slice": ("trace slice {trace} -o {trace}", "t.csv"),
    "trace scale": ("trace scale {trace} --speed 2 -o {trace}", "t.csv"),
    "trace merge": ("trace merge {trace} {trace} -o {trace}", "t.csv"),
    "trace synthesize": ("trace synthesize {trace} -o {trace}", "t.csv"),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_file_that_is_read_is_never_written(name: str, kvplan: Cli, things: dict[str, Path]) -> None:
    command, file = READ[name]
    folder = things["scenario"].parent
    for other in ("plan.json", "sweep.json", "validation.json"):
        document = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "requests": [{"arrival": 0, "prompt": 5, "output": 2}]}
        (folder / other).write_text(json.dumps(document))
    for other in ("config.json", "log"):
        (folder / other).write_text("{}")
    before = (folder / file).read_bytes()
    ended = kvplan(*typed(command, {**things, "folder": folder}, folder), "--overwrite")
    assert (ended.code, ended.out) == (2, "")
    assert "is a file that is read" in ended.err
    assert (folder / file).read_bytes() == before
    for other in ("plan.json", "sweep.json", "validation.json"):
        (folder / other).unlink()


def test_a_link_to_a_file_that_is_read_is_that_file(kvplan: Cli, things: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(things["trace"])
    ended = kvplan("trace", "convert", things["trace"], "-o", tmp_path / "link.csv", "--overwrite")
    assert "is a file that is read" in ended.err


def test_an_empty_file_and_standard_output_are_no_loss(kvplan: Cli, things: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").touch()
    assert kvplan("trace", "convert", things["trace"], "-o", tmp_path / "x.jsonl").code == 0
    assert len(read_trace(tmp_path / "x.jsonl")) == 30
    assert kvplan("trace", "convert", things["trace"], "--to", "vidur", "-o", "-").code == 0


def test_a_text_that_was_edited_is_the_persons(tmp_path: Path) -> None:
    for begin in ("# ", "<!-- "):
        for text in ("a: 1\n", "no line end", ""):
            data = signed(text, begin).encode()
            assert is_signed(data)
            assert not is_signed(data + b"b: 2\n")
            assert not is_signed(b"b: 2\n" + data)
            assert not is_signed(data[:-2] + b"\n")
    assert not is_signed(b"")
    path = tmp_path / "o.yaml"
    save_overrides(MemoryOverrides(), path)
    assert written.signed(path)
    path.write_text(path.read_text().replace("memory", "memory "))
    assert not written.signed(path)


def test_a_sweep_takes_no_rows_that_are_not_its_own(kvplan: Cli, things: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "points").mkdir()
    (tmp_path / "points" / "00000.parquet").write_text("mine")
    ended = kvplan("sweep", things["scenario"], "--set", "cache.block_size=16,32", "-o", tmp_path)
    assert ended.code == 2
    assert "holds a folder points that is no sweep's" in ended.err
    assert (tmp_path / "points" / "00000.parquet").read_text() == "mine"


def test_a_picture_bears_a_mark_that_viewers_skip(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    marked = forms.marked(png)
    (tmp_path / "x.png").write_bytes(marked)
    assert written.picture(tmp_path / "x.png")
    assert marked.replace(chunk(b"tEXt", b"Software\0kvplan"), b"") == png
    (tmp_path / "y.png").write_bytes(png)
    assert not written.picture(tmp_path / "y.png")
