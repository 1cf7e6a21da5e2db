"""Coverage-guided fuzzing of every reader: ``make fuzz``, or ``python tests/fuzz/readers.py -max_total_time=60``.

Any bytes give a trace or a ``KvplanError`` that names a line. What ends the run, with the input kept as
``crash-*``: another exception, ten seconds, 64 MiB more than before for an input of at most 64 KiB, a file
opened or a process begun while bytes from memory are read, and a trace that a writer cannot write or that its
own reader reads back differently.

Options are libFuzzer's; a folder among them is its corpus, a file an input to try again. The seeds are made
here and not stored.
"""

from __future__ import annotations

import gzip
import resource
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

import atheris
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

# Arrow and YAML are loaded before anything is watched: the readers import them when first needed.
import pyarrow.compute  # noqa: E402
import pyarrow.csv  # noqa: E402
import pyarrow.parquet  # noqa: E402, F401
import yaml  # noqa: E402, F401

with atheris.instrument_imports(include=["kvplan.trace"]):
    import kvplan.trace.readers as readers
    from kvplan.errors import KvplanError
    from kvplan.trace import Trace
    from kvplan.trace.read import ReadOptions, format_names, read_source
    from kvplan.trace.source import memory_source
    from kvplan.trace.writers import WRITERS
    from tests.fuzz.samples import samples, written

GROWTH_KIB = 64 << 10
FORBIDDEN = ("open", "os.", "subprocess.", "socket.", "pickle.", "exec", "ctypes.dlopen", "shutil.", "tempfile.")
FORMATS = (None, None, *format_names())
UNITS = (None, "s", "ms", "us", "ns")
POLICIES = ("error", "skip", "report")
UNIT_WRITTEN = {"mooncake": "ms", "aiperf": "ms"}
_LEAST_SHOWN = 3

_watching = False
_seen: list[str] = []


def watch(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: note what a reader of bytes in memory has no business with."""
    if _watching and event.startswith(FORBIDDEN):
        _seen.append(f"{event}{arguments!r}"[:200])


def read(data: bytes, options: ReadOptions) -> Trace | None:
    """The trace, or None where the bytes were refused as they should be."""
    global _watching
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _watching = True
    try:
        trace = read_source(memory_source(data), options)
    except KvplanError as error:
        asked_for = error.field in ("columns", "format")  # the person's words are at fault, not the file
        if error.line is None and not asked_for:
            raise AssertionError(f"no line: {error}") from error
        return None
    finally:
        _watching = False
        if _seen:
            raise AssertionError(f"touched: {_seen}")
        if (grown := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) > GROWTH_KIB:
            raise AssertionError(f"{grown} KiB more for {len(data)} bytes")
    return trace


def check_writer(trace: Trace, to: str) -> None:
    """What ``to`` writes is read back as the same requests."""
    text = written(trace, to)
    back = read(text, ReadOptions(time_unit=UNIT_WRITTEN.get(to)))
    assert back is not None, f"what {to} writes is not read: {text[:2000]!r}"
    assert back.prompt_tokens.tolist() == trace.prompt_tokens.tolist(), to
    assert back.output_tokens.tolist() == trace.output_tokens.tolist(), to
    shift = trace.arrival_s[0] - back.arrival_s[0]  # a late clock is put at 0
    assert np.allclose(back.arrival_s + shift, trace.arrival_s, rtol=1e-9, atol=2e-3), to


def fuzz(data: bytes) -> None:
    """One input: four bytes choose the options, the rest is the file."""
    if len(data) < 5:
        return
    form, unit, policy, to = data[:4]
    body = data[4:]
    options = ReadOptions(
        format=FORMATS[form % len(FORMATS)],
        time_unit=UNITS[unit % len(UNITS)],
        on_bad_row=POLICIES[policy % len(POLICIES)],
        limit=1000,
    )
    trace = read(gzip.compress(body, 1) if policy >= 128 else body, options)
    if trace is not None and len(trace) <= 100 and trace.prompt_tokens.max() < 1 << 16:
        check_writer(trace, list(WRITERS)[to % len(WRITERS)])


def words(module: types.ModuleType) -> Iterator[str]:
    """The text constants of a package's code: keys, column names, marks."""

    def constants(code: types.CodeType) -> Iterator[str]:
        for value in code.co_consts:
            if isinstance(value, types.CodeType):
                yield from constants(value)
            elif isinstance(value, tuple):
                yield from (part for part in value if isinstance(part, str))
            elif isinstance(value, str):
                yield value

    for path in sorted(Path(module.__path__[0]).rglob("*.py")):
        yield from constants(compile(path.read_text(), str(path), "exec"))


def dictionary() -> str:
    """libFuzzer's dictionary: what the readers look for, and what breaks parsers."""
    found = {word for word in words(readers) if _LEAST_SHOWN <= len(word) <= 40 and word.isascii() and " " not in word}
    odd = [
        "9" * 25,
        "1e999",
        "NaN",
        "-1",
        "null",
        "[[",
        "{}",
        '""',
        "\\ud800",
        "!!python/object",
        "&a",
        "*a",
        "1970-01-01",
    ]
    quoted = (word.encode("unicode_escape").decode().replace('"', '\\"') for word in sorted(found | set(odd)))
    return "".join(f'"{word}"\n' for word in quoted if "\\n" not in word and "\\t" not in word and "\\r" not in word)


def main() -> None:
    """Try the files given again, or seed a corpus of its own and hand over to libFuzzer."""
    if files := [path for path in sys.argv[1:] if Path(path).is_file()]:
        for path in files:
            fuzz(Path(path).read_bytes())
        return
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, (name, content) in enumerate(samples()):
            for policy in (0, 1, 128):
                (corpus / f"{name}-{policy}").write_bytes(bytes([0, 0, policy, number % 256]) + content)
                fuzz(bytes([0, 0, policy, number % 256]) + content)  # loads what is imported late, unwatched files
        (Path(folder) / "words").write_text(dictionary())
        sys.addaudithook(watch)
        options = ["-timeout=10", "-rss_limit_mb=4096", "-max_len=65536", f"-dict={folder}/words"]
        atheris.Setup([sys.argv[0], *options, *sys.argv[1:], str(corpus)], fuzz)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
