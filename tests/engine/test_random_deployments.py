"""Whatever the scheduler can do to a request (swap, share, copy, speculate, regrow), its logits are transformers'."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as budget

from kvplan.core.replica import Workload
from kvplan.core.settings import CacheGroup, Settings
from tests.core.random_runs import deployments
from tests.engine.models import Pair
from tests.engine.runs import run, worst_error


@pytest.mark.parametrize("kind", ["llama", "hybrid"])
@budget(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(drawn=deployments())
def test_random_deployments(pairs: dict[str, Pair], kind: str, drawn: tuple[Settings, Workload]) -> None:
    settings, work = drawn
    settings = replace(settings, groups=(CacheGroup(),), skip=False)
    assert worst_error(pairs[kind], run(pairs[kind], settings, work)) < 1e-4
