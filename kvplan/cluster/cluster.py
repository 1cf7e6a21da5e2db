"""The cluster in SimPy: everything above one replica is an event, everything inside it runs compiled.

The processes: the arrivals, one a fault, one a waiting client (where clients have a timeout), the autoscaler. A replica
is no process of its own: it is advanced to the moment at which somebody looks at it (`member.Member`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from kvplan.cluster.clock import until
from kvplan.cluster.ledger import LOST, REJECTED, TIMED_OUT, Ledger
from kvplan.cluster.member import DOWN, DRAINING, STOPPED, UP, WARMING, Member
from kvplan.cluster.router import Router
from kvplan.cluster.spec import ClusterSpec, Fault, Server
from kvplan.cluster.traffic import Traffic
from kvplan.core.intake import Room
from kvplan.core.replica import NO_REQUESTS, new_requests

Process = Generator[simpy.Event, Any, None]


class Cluster:
    """Runs one traffic through one cluster, event by event.

    Args:
        external: requests arrive with their prompts computed and their first tokens out (after a hand-over from
            prefill replicas); a request that starts again computes its prompt here.
        progress: called with the requests that have arrived and their total.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        traffic: Traffic,
        *,
        external: np.ndarray | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.spec = spec
        self.traffic = traffic
        self.ledger = Ledger(len(traffic))
        self.events = {"retried": 0, "client_retries": 0, "failures": 0, "scale_ups": 0, "scale_downs": 0}
        self.env = simpy.Environment()
        self._router = Router(spec.router, spec.seed)
        self._room = Room(traffic.longest, traffic.sequences)
        self._rows = new_requests(traffic.workload)
        self._rows["serial"] = np.arange(len(self._rows))
        if external is not None:
            self._rows["external"][: len(traffic)] = traffic.workload.prompt_tokens
            self._rows["generated"][: len(traffic)] = 1
            self._rows["first_token_s"][: len(traffic)] = external
            self._rows["last_token_s"][: len(traffic)] = external
        self._shares = len(traffic.workload.segment_ptr) > 1
        self._held: deque[int] = deque()
        self._coming_back = 0
        self._arrived = 0
        self._progress = progress
        self.members: list[Member] = []
        for server in spec.servers:
            self._start(server, UP)

    def run(self) -> None:
        """To the end: every request has left, or can no longer be served."""
        self.env.process(self._arrivals())
        for fault in self.spec.faults:
            self.env.process(self._fault(fault))
        if self.spec.autoscale is not None:
            self.env.process(self._autoscaler())
        self.env.run()
        for member in self.members:
            member.finish()
            self._harvest(member)
        for serial in self._held:
            self.ledger.rows["outcome"][serial] = LOST  # no replica came up again
        end = max(self.env.now if self.spec.autoscale else 0.0, float(self.ledger.rows["finish_s"].max(initial=0.0)))
        for member in self.members:
            if member.stopped_s is None:
                member.stopped_s = max(end, member.started_s)

    # Requests

    def _arrivals(self) -> Process:
        arrivals = self.traffic.workload.arrival_s
        for serial in range(len(self.traffic)):
            if arrivals[serial] > self.env.now:
                yield until(self.env, float(arrivals[serial]))
            self._arrived = serial + 1
            self._arrive(serial, 0)
            if self._progress is not None and serial % 1024 == 0:
                self._progress(self._arrived, len(self.traffic))

    def _arrive(self, serial: int, tries: int) -> None:
        """A client's request comes to the door, for the first time or again."""
        up = [member for member in self.members if member.state == UP]
        limit = self.spec.admission
        if limit is not None and up:
            now = self.env.now
            if sum(member.outstanding(now) for member in up) >= limit.max_outstanding * len(up):
                self._turned_away(serial, tries, REJECTED)
                return
        member = self._dispatch(serial, up)
        if self.spec.client.first_token_timeout_s is not None:
            self.env.process(self._waiting_client(serial, tries, member))

    def _dispatch(self, serial: int, up: list[Member]) -> Member | None:
        """Hands a request to a replica; None where none is up, and it waits at the door."""
        if not up:
            self._held.append(serial)
            return None
        now = self.env.now
        member = up[self._router.choose(int(self.traffic.keys[serial]), up, now)]
        content = self.traffic.workload.take(np.array([serial])) if self._shares else NO_REQUESTS
        member.offer(self._rows[serial : serial + 1], content, now)
        self.ledger.rows["attempts"][serial] += 1
        self.ledger.rows["replica"][serial] = member.index
        if member.crowded:
            self._harvest(member)
        return member

    def _turned_away(self, serial: int, tries: int, outcome: int) -> None:
        if tries < self.spec.client.retries:
            self._coming_back += 1
            self.env.process(self._come_back(serial, tries))
        else:
            self.ledger.rows["outcome"][serial] = outcome
            self.ledger.rows["replica"][serial] = -1

    def _come_back(self, serial: int, tries: int) -> Process:
        yield self.env.timeout(self.spec.client.backoff_s * 2**tries)
        self._coming_back -= 1
        self.events["client_retries"] += 1
        self._arrive(serial, tries + 1)

    def _waiting_client(self, serial: int, tries: int, member: Member | None) -> Process:
        timeout = self.spec.client.first_token_timeout_s
        assert timeout is not None
        yield self.env.timeout(timeout)
        if serial in self._held:
            self._held.remove(serial)
            self._turned_away(serial, tries, TIMED_OUT)
            return
        # A fault may have moved it to another replica meanwhile.
        member = self.members[int(self.ledger.rows["replica"][serial])]
        member.advance(self.env.now)
        row = member.row_of(serial)
        if row is not None and row["first_token_s"] < 0 and member.replica.abort(serial):
            self._turned_away(serial, tries, TIMED_OUT)

    def _harvest(self, member: Member) -> None:
        self.ledger.take(member.replica.forget(), member.index)

    # Replicas

    def _start(self, server: Server, state: str) -> Member:
        member = Member(len(self.members), server, self._room, state, self.env.now)
        self.members.append(member)
        return member

    def _serve(self, member: Member) -> None:
        """It takes requests from now on, those that wait at the door first."""
        member.state = UP
        waiting, self._held = self._held, deque()
        for serial in waiting:
            self._dispatch(serial, [one for one in self.members if one.state == UP])

    def _warm_up(self, member: Member) -> Process:
        yield self.env.timeout(self.spec.warm_up_s)
        if member.state == WARMING:
            self._serve(member)

    def _fault(self, fault: Fault) -> Process:
        yield until(self.env, fault.at_s)
        member = self.members[fault.replica]
        if member.state in (DOWN, STOPPED):
            return
        end = member.step_end(self.env.now)
        if end > self.env.now:
            yield until(self.env, end)
        member.advance(self.env.now)
        self._harvest(member)
        lost = member.replica.crash()
        member.state = DOWN
        self.events["failures"] += 1
        up = [one for one in self.members if one.state == UP]
        for row in lost:
            serial = int(row["serial"])
            if self.spec.on_fault == "lose":
                self.ledger.rows["outcome"][serial] = LOST
                continue
            self.events["retried"] += 1
            self._starts_again(serial)
            self._dispatch(serial, up)
        if fault.repair_s is not None:
            yield self.env.timeout(fault.repair_s)
            member.state = WARMING
            yield from self._warm_up(member)

    def _starts_again(self, serial: int) -> None:
        row = self._rows[serial : serial + 1]
        row["external"] = row["generated"] = 0
        row["first_token_s"] = row["last_token_s"] = -1.0

    # Autoscaling

    def _autoscaler(self) -> Process:
        rule = self.spec.autoscale
        assert rule is not None
        changed = -np.inf
        while not self._over():
            yield self.env.timeout(rule.interval_s)
            now = self.env.now
            for member in self.members:
                if member.state == DRAINING and member.outstanding(now) == 0:
                    member.state, member.stopped_s = STOPPED, now
            serving = [member for member in self.members if member.state in (UP, WARMING)]
            outstanding = len(self._held) + sum(member.outstanding(now) for member in serving)
            wanted = int(np.clip(np.ceil(outstanding / rule.target_outstanding), rule.minimum, rule.maximum))
            if wanted > len(serving):
                for _ in range(wanted - len(serving)):
                    self.env.process(self._warm_up(self._start(self.spec.servers[0], WARMING)))
                self.events["scale_ups"] += 1
                changed = now
            elif wanted < len(serving) and now - changed >= rule.cool_down_s:
                for member in serving[wanted:]:
                    member.state = DRAINING
                self.events["scale_downs"] += 1
                changed = now

    def _over(self) -> bool:
        now = self.env.now
        return (
            self._arrived == len(self.traffic)
            and not self._coming_back
            and not self._held
            and all(member.outstanding(now) == 0 for member in self.members)
        )
