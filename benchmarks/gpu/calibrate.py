"""`kvplan calibrate` for Llama 3.1 8B: a profile for bf16 and fp8 KV, for both layouts, for block sizes 8 to 128.

Needs kvplan's own dependencies beside torch and triton.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.gpu.deployments import Deployer, cases
from benchmarks.gpu.measure import Bench, main

BUDGET_S = 4.0
"""A case. Below 20 s the coarsest grid is measured: there are eleven cases."""


def calibrate(bench: Bench) -> None:
    """One profile a case, written into the session's folder."""
    from kvplan.calibration.calibrate import Calibration
    from kvplan.timing.profile import write_profile

    deployer = Deployer(bench)
    for case in cases(bench):
        scenario = deployer.scenario(case)
        budget_s = 0.0 if bench.dry_run else BUDGET_S
        calibration = Calibration(scenario, deployer.options, budget_s, weights=deployer.weights(scenario))
        calibration.measure()
        profile = calibration.profile()
        write_profile(profile, case.profile(bench))
        bench.record(
            part="calibrate", case=case.name, points=len(calibration.points), failed=calibration.samples.failed,
            memory=dict(profile.memory), errors=dict(profile.errors["1"]), profile=case.profile(bench).name,
        )  # fmt: skip
        del calibration
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main(calibrate))
