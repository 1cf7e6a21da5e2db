"""What a person reads: numbers, curves, the table, the sentence."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvplan.terminal import formats
from kvplan.terminal.sparkline import sparkline
from kvplan.terminal.summary import print_summary
from kvplan.terminal.verdict import verdict
from tests.cli.results import FakeResult, run


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00 ms"),
        (0.0000123, "0.012 ms"),
        (0.0123, "12.3 ms"),
        (0.25, "250 ms"),
        (1.5, "1.50 s"),
        (119.0, "119 s"),
        (150.0, "2.50 min"),
        (7300.0, "2.03 h"),
        (None, "–"),
    ],
)
def test_seconds_choose_their_unit(value: float | None, text: str) -> None:
    assert formats.seconds(value) == text


def test_other_numbers() -> None:
    assert (formats.gib(57.5), formats.kib(131072), formats.percent(0.1234)) == (
        "57.50 GiB",
        "128 KiB",
        "12.3 %",
    )
    assert [formats.decimal(x) for x in (0.012345, 1.2345, 12.345, 1234.5)] == [
        "0.012",
        "1.23",
        "12.3",
        "1,234",
    ]
    assert {f(None) for f in (formats.gib, formats.kib, formats.percent, formats.decimal, formats.count)} == {"–"}


def test_a_sparkline_keeps_peaks_and_shows_whatever_is_not_nothing() -> None:
    assert sparkline([0, 1, 4, 8], top=8) == " ▁▄█"
    assert sparkline([0.0] * 999 + [1.0] + [0.0] * 1000, top=1, width=4) == " █  "
    assert sparkline([0.001], top=8) == "▁"
    assert sparkline([], top=1) == ""
    assert sparkline([0.0], top=0) == " "
    assert sparkline([9.0], top=1) == "█"


def shown(result: FakeResult, width: int = 100) -> str:
    stream = io.StringIO()
    print_summary(Console(file=stream, width=width), result.summary, result.timeline)
    return stream.getvalue()


def test_the_table_has_a_column_a_run_and_the_units() -> None:
    text = shown(FakeResult())
    assert text.startswith("llama-3.1-8b on h100-sxm, vllm 0.33: 1 request\n")
    lines = {line.split("  ")[0].strip(): line.split() for line in text.splitlines()}
    assert lines["KV pool"][-4:] == ["50.00", "GiB", "50.00", "GiB"]
    assert lines["pool: internal, mean"][-4:] == ["1.0", "%", "60.0", "%"]
    assert lines["TTFT p99"][-4:] == ["250", "ms", "500", "ms"]
    assert lines["prefix hits"][-1] == "–"
    assert lines["pool in use, over time"][-1] == "▁▂▂▃▄▅▆▆▇"


def test_many_runs_are_laid_out_in_several_tables() -> None:
    names = tuple(f"run{i}" for i in range(7))
    text = shown(FakeResult(names=names))
    assert text.count("KV pool") == 2
    assert all(name in text for name in names)


def test_names_are_shown_as_they_are_not_as_markup() -> None:
    assert "[red]x[/]" in shown(FakeResult(names=("[red]x[/]", "b")))


def summary(*runs: object) -> dict[str, object]:
    return {"runs": list(runs)}


def test_the_sentence_compares_throughput_first() -> None:
    text = verdict(summary(run("paged", 0, throughput=2000.0), run("max", 1, throughput=500.0)))
    assert text == (
        "paged delivers 4.00× the output tokens per second of max (2,000 against 500): "
        "max leaves 60.0 % of its pool reserved or in holes, paged 1.0 %."
    )


def test_then_the_wait_for_the_first_token() -> None:
    assert "a p99 TTFT of 250 ms under paged is 500 ms under max" in verdict(summary(run("paged"), run("max", 1)))


def test_then_says_that_nothing_differs() -> None:
    assert verdict(summary(run("a"), run("b"))).startswith("All runs carry this load alike. a: tokens filled 30.0 %")


def test_a_run_that_refuses_everything_is_not_a_ratio() -> None:
    dead = run("max", 1, refused=True, throughput=0.0)
    assert verdict(summary(run("paged"), dead)).startswith("paged serves this load and max refuses all of it")
