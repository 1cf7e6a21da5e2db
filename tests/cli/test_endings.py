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
    with pytest.raises(InputError) as error:
        check_targets(output and tmp_path / output, steps and tmp_path / steps)  # type: ignore[arg-type]
    assert error.value.field == field
