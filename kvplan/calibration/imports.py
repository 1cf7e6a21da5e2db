"""Which reader a path is for, and the profile with its leave-one-out errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.calibration.aiconfigurator import import_aiconfigurator
from kvplan.calibration.errors import as_json
from kvplan.calibration.llmservingsim import import_llmservingsim
from kvplan.calibration.vidur import import_vidur
from kvplan.errors import InputError
from kvplan.timing.profile import Profile

if TYPE_CHECKING:
    from kvplan.catalog import ModelConfig


def import_folder(path: str | Path) -> Profile:
    """The profile in a folder of LLMServingSim's or of Vidur's.

    Raises:
        InputError: no such folder, or neither's files in it.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError("no such folder", field="PATH", source=str(path))
    if (path / "dense.csv").exists() or any(path.glob("tp*/dense.csv")):
        return with_errors(import_llmservingsim(path))
    if (path / "mlp.csv").exists():
        return with_errors(import_vidur(path))
    raise InputError(
        "no profile that is understood",
        field="PATH",
        source=str(path),
        hint="LLMServingSim's dense.csv, per_sequence.csv and attention.csv (here or in tp1, tp2, ...), or Vidur's "
        "mlp.csv and attention.csv",
    )


def import_system(
    system: str, model: ModelConfig, sizes: Sequence[int], framework: str, kv_cache_dtype: str
) -> Profile:
    """The profile of a model on one of aiconfigurator's systems; see `import_aiconfigurator`."""
    return with_errors(
        import_aiconfigurator(
            system, model, tensor_parallel_sizes=sizes, framework=framework, kv_cache_dtype=kv_cache_dtype
        )
    )


def with_errors(profile: Profile) -> Profile:
    """The profile with its leave-one-out errors written in."""
    return replace(profile, errors=as_json(profile))
