"""``kvplan profile`` and ``kvplan validate`` as a person calls them."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from kvplan.commands.lazy import Target
from kvplan.errors import InputError, ToleranceError

PROFILE = Target("kvplan.commands.profile:app", "")
VALIDATE = Target("kvplan.commands.validate:validate", "")


def run(target: Target, *arguments: object) -> str:
    """Standard output of a command that ends well."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        target.load("command").main(args=[str(a) for a in arguments], standalone_mode=False)
    return out.getvalue()


@pytest.fixture(scope="module")
def profile(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "p.json"
    out = run(PROFILE, "import", shared_data / "profiles" / "llmservingsim-rtx4090-llama-3.1-8b", "-o", path)
    assert "leave-one-out" in out
    return path


def test_a_profile_is_shown_and_drawn(profile: Path, tmp_path: Path) -> None:
    out = run(PROFILE, "show", profile, "-o", tmp_path / "p.html")
    assert "NVIDIA GeForce RTX 4090" in out
    page = (tmp_path / "p.html").read_text()
    assert "gate_up_proj" in page
    assert "attention of decode" in page


def test_its_head_is_json_without_the_points(profile: Path) -> None:
    document = json.loads(run(PROFILE, "show", profile, "--json"))
    assert document["versions"]["vllm"] == "0.19.0"
    assert "ranks" not in document


def test_importing_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="give a folder or --system"):
        run(PROFILE, "import")


def test_a_validation_writes_its_files_and_prints_what_it_wrote(
    profile: Path, shared_data: Path, tmp_path: Path
) -> None:
    folder = shared_data / "traces" / "llmservingsim"
    arguments = (
        "--observed",
        folder / "RTX4090_Llama-3.1-8B",
        "--profile",
        profile,
        "--trace",
        folder / "sharegpt-llama-3.1-8b-300-sps10.hash16.jsonl",
    )
    out = run(VALIDATE, *arguments, "--json", "-o", tmp_path / "out", "--tolerance", "0.05")
    assert json.loads(out) == json.loads((tmp_path / "out" / "validation.json").read_text())
    assert "KV cache in live allocations" in (tmp_path / "out" / "overlay.html").read_text()
    with pytest.raises(ToleranceError, match="off by") as refused:
        run(VALIDATE, *arguments, "--tolerance", "0.001")
    assert refused.value.exit_code == 4


def test_a_validation_without_a_run_is_refused() -> None:
    with pytest.raises(InputError, match="--observed"):
        run(VALIDATE)
