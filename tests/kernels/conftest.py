"""The kernels run in Triton's interpreter here: the environment must say so before anything imports
triton."""

from __future__ import annotations

import os
import random
import sys

import pytest

if "triton" not in sys.modules:
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if "tests/kernels/" in item.path.as_posix()]
    if here and not triton.knobs.runtime.interpret:
        raise pytest.UsageError("triton was imported before TRITON_INTERPRET=1 was set; set it and run again")


@pytest.fixture(scope="session")
def seed() -> int:
    """Fresh each run; KVPLAN_TEST_SEED repeats one."""
    return int(os.environ.get("KVPLAN_TEST_SEED", random.SystemRandom().randrange(2**31)))


@pytest.fixture
def generator(seed: int, request: pytest.FixtureRequest) -> torch.Generator:
    """The test's own random numbers; a failing test shows how to draw them again."""
    print(f"KVPLAN_TEST_SEED={seed} repeats {request.node.name}")
    return torch.Generator().manual_seed(seed)
