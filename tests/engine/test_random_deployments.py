"""Whatever the scheduler can do to a request (swap, share, copy, speculate, regrow), its logits are transformers'."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as budget

from kvplan.core.replica import Workload
from kvplan.core.settings import CacheGroup, Settings
from tests.core.random_runs import deployments
from tests.engine.models import Pair
from tests.engine.runs import run, worst_error


# Generated only: every example is a whole run, and shrinking a failing one would take many minutes.
@pytest.mark.parametrize("kind", ["llama", "hybrid"])
@budget(
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(drawn=deployments())
def test_random_deployments(pairs: dict[str, Pair], kind: str, drawn: tuple[Settings, Workload]) -> None:
    settings, work = drawn
    settings = replace(settings, groups=(CacheGroup(),), skip=False)
    if not settings.paged:  # a reservation for the answer alone has no room for drafts beyond it
        settings = replace(settings, num_speculative_tokens=0)
    assert worst_error(pairs[kind], run(pairs[kind], settings, work)) < 1e-4
