"""The engine's tests run on the CPU, on one thread, with models of a few thousand weights."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the engine needs torch: pip install 'kvplan[engine]'")
pytest.importorskip("transformers", reason="the reference is transformers' own model")

from tests.engine.models import KINDS, Pair, make_pair  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Every kind of model, as transformers' and as ours, with the same weights."""
    folder: Path = tmp_path_factory.mktemp("checkpoints")
    return {kind: make_pair(kind, folder / kind) for kind in KINDS}
