"""Where a result may be written is asked before the run, in every command that makes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.commands.endings import check_targets
from kvplan.errors import InputError


@pytest.mark.parametrize(
    ("output", "steps", "field"),
    [("file", None, "--output"), (None, "nowhere/steps.jsonl", "--steps"), (None, ".", "--steps")],
)
def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, output: str | None, steps: str | None, field: str
) -> None:
    (tmp_path / "file").write_text("a person's own")
    places = [None if name is None else tmp_path / name for name in (output, steps)]
    with pytest.raises(InputError) as error:
        check_targets(*places, read=(), overwrite=False)
    assert error.value.field == field


def test_a_step_log_is_no_file_of_the_results(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="is a file of --output") as error:
        check_targets(tmp_path / "out", tmp_path / "out" / "summary.json", read=(), overwrite=True)
    assert error.value.field == "--steps"
