"""What a cluster is: its replicas, who sends a request where, and what happens when something goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.core.settings import Settings
from kvplan.errors import InputError
from kvplan.timing import StepTimes

if TYPE_CHECKING:
    from kvplan.resolve import Deployment

ROUTERS = ("round_robin", "random", "prefix_aware", "least_outstanding", "least_kv", "power_of_two")
BLIND_ROUTERS = ("round_robin", "random", "prefix_aware")
"""Those that look at the request only, never at the replicas."""


@dataclass(frozen=True, eq=False)
class Server:
    """A kind of replica.

    Args:
        gpus: tensor x pipeline parallel size: what a second of it costs.
    """

    settings: Settings
    timing: StepTimes
    gpus: int = 1
    name: str = ""

    @classmethod
    def of(cls, deployment: Deployment, name: str = "") -> Server:
        plan = deployment.memory
        gpus = plan.tensor_parallel_size * plan.pipeline_parallel_size
        return cls(deployment.settings, deployment.timing, gpus, name or deployment.gpu.name)


@dataclass(frozen=True)
class Fault:
    """A replica stops at `at_s`, or at the end of the step that then runs, and loses its pool.

    It comes back `repair_s` later, plus the cluster's `warm_up_s`; None: never.
    """

    replica: int
    at_s: float
    repair_s: float | None = None


@dataclass(frozen=True)
class Admission:
    """A request is turned away where the replicas that are up hold `max_outstanding` each, on average."""

    max_outstanding: int


@dataclass(frozen=True)
class Client:
    """What the sender does when it is turned away, or has waited too long.

    Args:
        first_token_timeout_s: it leaves when its first token has not come by then (a step that runs at that moment
            still counts); None: it waits for ever.
        retries: how often it comes back.
        backoff_s: after how long, doubled each time.
    """

    first_token_timeout_s: float | None = None
    retries: int = 0
    backoff_s: float = 1.0


@dataclass(frozen=True)
class Autoscale:
    """Every `interval_s` the cluster wants ceil(outstanding requests / target_outstanding) replicas.

    More are started at once and serve after the cluster's `warm_up_s`; fewer, not within `cool_down_s` of the last
    change: the newest get no more requests and stop when they are idle.
    """

    target_outstanding: float
    minimum: int = 1
    maximum: int = 64
    interval_s: float = 15.0
    cool_down_s: float = 300.0


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster of replicas behind one router.

    Args:
        servers: one for each replica; they may differ.
        router: one of `ROUTERS`.
        on_fault: "retry": the requests of a replica that failed start again on another one; "lose": they are lost.
        warm_up_s: from the start of a replica (after a repair, or by the autoscaler) to its first request. Those of
            `servers` are warm at the beginning.
        seed: of the router's draws.

    Raises:
        InputError: a name or number that makes no cluster.
    """

    servers: tuple[Server, ...]
    router: str = "round_robin"
    faults: tuple[Fault, ...] = ()
    on_fault: str = "retry"
    admission: Admission | None = None
    client: Client = Client()
    autoscale: Autoscale | None = None
    warm_up_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.servers:
            raise InputError("a cluster has at least one replica", field="servers")
        if self.router not in ROUTERS:
            raise InputError(f"must be one of {', '.join(ROUTERS)}", field="router", value=self.router)
        if self.on_fault not in ("retry", "lose"):
            raise InputError("must be retry or lose", field="on_fault", value=self.on_fault)
        for fault in self.faults:
            if not 0 <= fault.replica < len(self.servers):
                raise InputError(f"there are {len(self.servers)} replicas", field="fault.replica", value=fault.replica)
            if fault.at_s < 0 or (fault.repair_s is not None and fault.repair_s < 0):
                raise InputError("a time is not negative", field="fault.at_s", value=fault.at_s)
        if self.admission is not None and self.admission.max_outstanding < 1:
            raise InputError("must be at least 1", field="max_outstanding", value=self.admission.max_outstanding)
        if self.client.retries < 0 or self.client.backoff_s < 0:
            raise InputError("must not be negative", field="client.retries", value=self.client.retries)
        timeout = self.client.first_token_timeout_s
        if timeout is not None and timeout <= 0:
            raise InputError("must be above 0", field="client.first_token_timeout_s", value=timeout)
        if timeout is not None and any(server.settings.async_scheduling for server in self.servers):
            raise InputError(
                "timeouts need async_scheduling: false (a request in flight cannot be taken out)",
                field="client.first_token_timeout_s",
                value=timeout,
            )
        self._check_autoscale()

    def _check_autoscale(self) -> None:
        scale = self.autoscale
        if scale is None:
            return
        if not 1 <= scale.minimum <= scale.maximum:
            raise InputError("must be 1 <= minimum <= maximum", field="autoscale.minimum", value=scale.minimum)
        if scale.target_outstanding <= 0 or scale.interval_s <= 0:
            raise InputError(
                "target_outstanding and interval_s must be above 0", field="autoscale", value=scale.target_outstanding
            )

    @property
    def uneventful(self) -> bool:
        """Nothing but the trace decides which replica a request goes to: no event has to be simulated for it."""
        return (
            self.router in BLIND_ROUTERS
            and not self.faults
            and self.admission is None
            and self.autoscale is None
            and self.client.first_token_timeout_s is None
        )
