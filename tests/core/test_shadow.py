"""Whatever is shared, copied, swapped, evicted or rolled back: every row reads its own history."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, given, settings

from kvplan.core.replica import Workload
from kvplan.core.settings import Settings
from tests.core.random_runs import deployments
from tests.core.shadow import run_in_the_shadow

EXAMPLES = settings(
    max_examples=int(os.environ.get("KVPLAN_TEST_EXAMPLES", "600")),
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # shrinking would take minutes: the histories depend on everything
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


@EXAMPLES
@given(deployments())
def test_every_row_reads_its_own_history(deployment: tuple[Settings, Workload]) -> None:
    run_in_the_shadow(*deployment)
