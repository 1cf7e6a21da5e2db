"""`kvplan validate` for Llama 3.1 8B: Azure conversation traffic on the engine and on the simulator, with the profiles
that `calibrate` has left in the session's folder.

Needs kvplan's own dependencies beside torch and triton.
"""

from __future__ import annotations

import sys

from benchmarks.gpu.deployments import Deployer, cases
from benchmarks.gpu.measure import Bench, main

REQUESTS, RATE = 60, 20.0
"""Arrivals a second: more than the card serves, so that its steps and not the trace decide the throughput."""


def replay(bench: Bench) -> None:
    """One comparison a profile."""
    from kvplan.calibration.replay import execute, judge
    from kvplan.engine.engine import Engine
    from kvplan.engine.run import deploy
    from kvplan.resolve import resolve
    from kvplan.scenario import Scenario, load_scenario
    from kvplan.timing.profile import read_profile
    from kvplan.trace.edit import cut, scale

    requests = 8 if bench.dry_run else REQUESTS
    trace = scale(cut(load_scenario("azure-conversation").trace(), count=requests), rate=RATE)
    if bench.dry_run:
        trace = scale(trace, prompt=1 / 200, output=1 / 50)
    deployer = Deployer(bench)
    for case in cases(bench):
        path = case.profile(bench)
        if not path.exists():
            bench.record(part="replay", case=case.name, missing=path.name)
            continue
        base = deployer.scenario(case)
        scenario = Scenario.build({**base.to_mapping(), "timing": {"profile": str(path)}})
        deployment, shape, pool = deploy(scenario)
        engine = Engine(shape, deployment.settings, pool, deployer.options, deployer.weights(scenario))
        found = judge(scenario, resolve(scenario), read_profile(path), trace, execute(engine, trace))
        document = found.as_json()
        del document["scenario"], engine
        bench.record(part="replay", case=case.name, validation=document)


if __name__ == "__main__":
    sys.exit(main(replay))
