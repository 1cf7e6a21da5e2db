"""Explaining a server's own figures: does the model account for them, and do they add up at all?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvplan.catalog import Gpu, ModelConfig
from kvplan.errors import InputError
from kvplan.memory.checks import (
    GIB,
    Check,
    against_model,
    graphs_charged,
    identities,
    shape_of,
)
from kvplan.memory.findings import findings_of, impossible_pool
from kvplan.memory.overrides import MemoryOverrides
from kvplan.memory.plan import MemoryPlan, plan_memory
from kvplan.memory.server_facts import ServerFacts

Verdict = Literal["agrees", "differs", "cannot balance", "nothing to check"]


@dataclass(frozen=True)
class Line:
    """One term in GiB: what was logged, what kvplan predicts from model, GPU and flags alone."""

    name: str
    logged_gib: float | None
    predicted_gib: float | None

    @property
    def error(self) -> float | None:
        """Relative to the logged figure."""
        if not self.logged_gib or self.predicted_gib is None:
            return None
        return (self.predicted_gib - self.logged_gib) / self.logged_gib


@dataclass(frozen=True)
class Reconciliation:
    """The logged figures beside the computed ones, and what follows.

    ``checks`` take the server's own terms for granted and follow them to blocks, tokens and concurrency; ``lines``
    are the terms beside kvplan's prediction. ``findings`` are sentences for a person.
    """

    facts: ServerFacts
    model: ModelConfig | None
    plan: MemoryPlan | None
    checks: tuple[Check, ...]
    lines: tuple[Line, ...]
    findings: tuple[str, ...]
    verdict: Verdict

    @property
    def overrides(self) -> MemoryOverrides:
        """The measured terms, for later plans of the same server."""
        f = self.facts
        activation = f.activation_gib
        if activation is None and f.peak_torch_gib is not None and f.weights_gib is not None:
            activation = f.peak_torch_gib - f.weights_gib
        graphs = f.cuda_graphs_estimated_gib if graphs_charged(f) else f.cuda_graphs_gib
        return MemoryOverrides.from_gib(
            origin="measured: " + " ".join(filter(None, (f.engine, f.version, f.model))) or "measured",
            total=f.total_gib,
            weights=f.weights_gib,
            non_torch=f.non_torch_gib,
            activation=activation,
            cuda_graphs=graphs,
        )


def reconcile(facts: ServerFacts, model: ModelConfig | None = None, gpu: Gpu | None = None) -> Reconciliation:
    """Lay a server's figures beside what its model, its flags and (where known) its GPU give.

    Args:
        facts: what was read; flags in it that the log does not show can be set before.
        model: None leaves only the equations among the figures themselves.
        gpu: None leaves out the prediction of the terms.
    """
    if model is not None and facts.dtype in ("float32", "float16", "bfloat16"):
        model = replace(model, dtype=facts.dtype)
    checks = list(identities(facts))
    shape = None
    findings: list[str] = []
    if model is not None:
        try:
            shape = shape_of(model, facts)
        except InputError as error:
            findings.append(f"the model's cache cannot be computed: {error}")
    if shape is not None:
        checks = [check for check in checks if not (check.name == "estimated_max_len" and shape.hybrid)]
        checks += against_model(facts, shape)
    impossible = impossible_pool(facts, shape, gpu)
    if impossible:
        findings.append(impossible)
    findings += findings_of(facts, checks, shape)
    plan = _plan(facts, model, gpu)
    broken = impossible is not None or any(check.identity and not check.agrees for check in checks)
    verdict: Verdict = "agrees" if checks else "nothing to check"
    if broken:
        verdict = "cannot balance"
    elif any(not check.agrees for check in checks):
        verdict = "differs"
    lines = _lines(facts, plan)
    return Reconciliation(facts, model, plan, tuple(checks), lines, (*findings, *_largest(lines)), verdict)


def _plan(facts: ServerFacts, model: ModelConfig | None, gpu: Gpu | None) -> MemoryPlan | None:
    """kvplan's own prediction for the flags the log shows."""
    if model is None or gpu is None or not model.layers:
        return None
    try:
        return plan_memory(
            model,
            gpu,
            tensor_parallel_size=facts.tensor_parallel_size or 1,
            pipeline_parallel_size=facts.pipeline_parallel_size or 1,
            block_size=facts.block_size if facts.block_size and facts.block_size <= 256 else None,
            kv_cache_dtype=facts.kv_cache_dtype or "auto",
            gpu_memory_utilization=facts.gpu_memory_utilization,
            max_model_len=facts.max_model_len,
            max_num_seqs=facts.max_num_seqs,
            max_num_batched_tokens=facts.max_num_batched_tokens,
            num_gpu_blocks_override=facts.num_gpu_blocks_override,
            engine=facts.engine or "vllm",
            version=facts.version or "0.33",
            overrides=MemoryOverrides.from_gib(total=facts.total_gib),
            async_scheduling=bool(facts.async_scheduling),
            enforce_eager=bool(facts.enforce_eager),
            pp_layer_partition=facts.pp_layer_partition,
        )
    except InputError:
        return None


def _lines(facts: ServerFacts, plan: MemoryPlan | None) -> tuple[Line, ...]:
    activation = facts.activation_gib
    if activation is None and facts.peak_torch_gib is not None and facts.weights_gib is not None:
        activation = facts.peak_torch_gib - facts.weights_gib
    logged = {
        "total": facts.total_gib,
        "requested": facts.requested_gib,
        "weights": facts.weights_gib,
        "non_torch": facts.non_torch_gib,
        "activation": activation,
        "cuda_graphs": facts.cuda_graphs_estimated_gib if graphs_charged(facts) else facts.cuda_graphs_gib,
        "kv_cache": facts.pool_gib,
    }
    predicted = (
        {}
        if plan is None
        else {
            "total": plan.total_bytes / GIB,
            "requested": plan.requested_bytes / GIB,
            "weights": plan.weights_bytes / GIB,
            "non_torch": plan.non_torch_bytes / GIB,
            "activation": plan.activation_bytes / GIB,
            "cuda_graphs": plan.cuda_graphs_bytes / GIB,
            "kv_cache": plan.available_bytes / GIB,
        }
    )
    return tuple(
        Line(name, value, predicted.get(name))
        for name, value in logged.items()
        if value is not None or name in predicted
    )


def _largest(lines: tuple[Line, ...]) -> list[str]:
    """Which term explains most of a wrong prediction of the pool."""
    pool = next((line for line in lines if line.name == "kv_cache"), None)
    if pool is None or pool.logged_gib is None or pool.predicted_gib is None:
        return []
    gap = pool.predicted_gib - pool.logged_gib
    if abs(gap) <= 0.01 * abs(pool.logged_gib):
        return []
    apart = [
        (abs(line.predicted_gib - line.logged_gib), line)
        for line in lines
        if line.name in ("weights", "non_torch", "activation")
        and line.logged_gib is not None
        and line.predicted_gib is not None
    ]
    if not apart:
        return [f"the predicted pool is {gap:+.2f} GiB off and the log does not show the terms that would explain it"]
    size, line = max(apart, key=lambda item: item[0])
    return [f"the predicted pool is {gap:+.2f} GiB off; {line.name} explains {size:.2f} GiB of it"]
