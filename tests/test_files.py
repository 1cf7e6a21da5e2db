"""Files are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvplan.errors import KvplanError
from kvplan.files import atomic_path, atomic_write, make_folder, write_bytes, write_json, write_text

ROOT = Path(__file__).resolve().parents[1]


def test_a_file_is_written(tmp_path):
    write_text(tmp_path / "a", "line\n")
    write_bytes(tmp_path / "b", b"\x00")
    write_json(tmp_path / "c", {"a": 1})
    assert [(tmp_path / name).read_bytes() for name in "abc"] == [b"line\n", b"\x00", b'{\n  "a": 1\n}\n']
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_an_exception_leaves_the_earlier_file_and_nothing_else(tmp_path):
    write_text(tmp_path / "a", "earlier")

    def fail_half_way() -> None:
        with atomic_write(tmp_path / "a") as file:
            file.write("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "earlier")]


def test_permissions_are_those_of_any_new_file_or_of_the_earlier_one(tmp_path):
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "a", "")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    (tmp_path / "a").chmod(0o600)
    write_text(tmp_path / "a", "again")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("earlier")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_device_is_written_to_and_not_replaced():
    write_text("/dev/null", "nothing")
    assert Path("/dev/null").is_char_device()


def test_a_missing_folder_or_one_in_the_way_is_an_error(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "missing" / "a", tmp_path / "folder", tmp_path / "file" / "a"):
        with pytest.raises(KvplanError, match="cannot write") as refused:
            write_text(path, "x")
        assert refused.value.hint
    with pytest.raises(KvplanError, match="cannot write"):
        make_folder(tmp_path / "file" / "a")
    assert make_folder(tmp_path / "new" / "deep").is_dir()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(KvplanError, match="cannot write"):
            write_text(tmp_path / "a", "x")
    finally:
        tmp_path.chmod(0o700)


def test_a_full_disk_is_an_error_and_leaves_the_earlier_file(tmp_path):
    """A limit on the file's size stands for the disk: the kernel refuses the write in its middle."""
    write_text(tmp_path / "a", "earlier")
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, former[1]))
    try:
        with pytest.raises(KvplanError, match="cannot write"):
            write_text(tmp_path / "a", "x" * (1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
        signal.signal(signal.SIGXFSZ, handler)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "earlier")]


def test_a_path_for_libraries_that_open_files_themselves(tmp_path):
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("whole")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_text() == "whole"


WRITER = """
import sys
from kvplan.files import write_json
write_json(sys.argv[1], {"value": "x" * 5})
print("ready", flush=True)
n = 0
while True:
    n += 1
    write_json(sys.argv[1], {"number": n, "value": list(range(20_000))})
"""


@pytest.mark.slow
def test_killed_at_fifty_random_moments_a_file_is_always_whole(tmp_path):
    target = tmp_path / "out.json"
    moments = random.Random(0)
    numbers = []
    for _ in range(50):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(target)], cwd=ROOT, stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(moments.uniform(0, 0.05))
        child.kill()
        child.wait()
        child.stdout.close()
        numbers.append(json.loads(target.read_text()).get("number", 0))
    assert max(numbers) > min(numbers)  # it was killed at different stages


TRACE_WRITER = """
import sys
from kvplan.trace import inline_trace
from kvplan.trace.writers import write_trace
trace = inline_trace([{"arrival": n, "prompt": 10, "output": 2} for n in range(3000)])
print("ready", flush=True)
while True:
    write_trace(trace, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_trace_killed_while_written_is_whole_or_absent(tmp_path, suffix):
    from kvplan.trace import read_trace

    target = tmp_path / f"out{suffix}"
    moments = random.Random(1)
    for _ in range(5):
        target.unlink(missing_ok=True)
        child = subprocess.Popen([sys.executable, "-c", TRACE_WRITER, str(target)], cwd=ROOT, stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(moments.uniform(0, 0.1))
        child.kill()
        child.wait()
        child.stdout.close()
        assert not target.exists() or len(read_trace(target)) == 3000
