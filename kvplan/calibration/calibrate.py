"""`calibrate`: measures the engine on this machine and makes a profile of it."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import kvplan
from kvplan.calibration.assemble import assemble
from kvplan.calibration.deployment import calibrated_scenario
from kvplan.calibration.measure import Progress, measure
from kvplan.calibration.meter import Meter
from kvplan.calibration.meters import Meters, forms_of
from kvplan.calibration.plan import MOVED_BLOCKS, Point, density, form_points, points
from kvplan.calibration.samples import Samples, partial_path
from kvplan.calibration.stopwatch import Stopwatch, clock_of
from kvplan.core.settings import Settings
from kvplan.engine.device_memory import DeviceMemory, device_memory
from kvplan.engine.engine import Engine, EngineOptions
from kvplan.engine.pool import PoolShape
from kvplan.engine.run import deploy
from kvplan.engine.weights import Weights
from kvplan.errors import InputError
from kvplan.resolve import Deployment
from kvplan.scenario import Scenario
from kvplan.timing.profile import BlockForm, Profile, write_profile

HOST_POOL_BYTES = 256 << 20
"""At most so much of the host is taken to measure swaps."""


@dataclass(eq=False)
class Calibration:
    """An engine and what has been measured on it: can be measured for a while, again and again.

    Raises:
        InputError: the engine does not run this model or these settings.
        InfeasibleError: the pool does not fit the device.
    """

    scenario: Scenario
    options: EngineOptions
    budget_s: float
    clock: str = "wall"
    partial: Path | None = None
    weights: Weights | None = None
    """The model's, where they are on the device already; drawn from the options' seed otherwise."""
    block_sizes: Sequence[int] | None = None
    """Attention is measured again in blocks of these sizes; None: the budget chooses. Of a contiguous cache: none."""
    kv_cache_dtypes: Sequence[str] = ()
    """And with K and V of these types (`pool.CACHE_DTYPES`), in every block size."""

    def __post_init__(self) -> None:
        device = self.options.torch_device()
        before = device_memory(device)
        self.deployment, shape, pool = deploy(self.scenario)
        settings = self.settings = replace(
            self.deployment.settings, async_scheduling=False
        )  # whole steps are told apart by plan
        self.engine = Engine(shape, settings, _with_host_pool(pool, settings), self.options, self.weights)
        longest = self.longest = min(settings.max_model_len - 1, settings.total_slots)
        own = Meter(self.engine, longest, self.options.seed, self.clock)
        forms = self._forms()
        self.meter = Meters(self.engine, own, forms)
        swaps = self.engine.pool.shape.host_blocks > 0
        wanted = [point for point in points(settings, longest, self.budget_s, swaps) if self.meter.can(point)]
        wanted += form_points(wanted, forms, self.budget_s)
        self.points: list[Point] = [point for point in wanted if self.meter.can(point)]
        self.samples = Samples({**_identity(self.deployment, self.engine), "clock": self.clock}, self.partial)
        self.memory = _memory(self.engine, own, before)

    def _forms(self) -> list[BlockForm]:
        """The further forms of the KV cache in which attention is measured."""
        if not self.settings.paged:
            given = {"--block-sizes": self.block_sizes, "--kv-cache-dtypes": self.kv_cache_dtypes}
            for flag, value in given.items():
                if value:
                    raise InputError("a contiguous cache has no blocks", field=flag, value=", ".join(map(str, value)))
            return []
        sizes = density(self.budget_s).block_sizes if self.block_sizes is None else self.block_sizes
        form = BlockForm(self.settings.block_size, str(self.engine.pool.shape.dtype).removeprefix("torch."))
        return forms_of(form, sizes, self.kv_cache_dtypes)

    def measure(self, progress: Progress | None = None, *, budget_s: float | None = None) -> None:
        """Every point at least once, then all of them again for as long as the budget (or this part of it) lasts."""
        self.engine.warm_up()
        measure(self.meter, self.points, self.samples, self.budget_s if budget_s is None else budget_s, progress)

    def profile(self) -> Profile:
        """Of all that has been measured so far."""
        passes = [self.samples.count(point.key) for point in self.points]
        head = Profile(
            name=f"{self.deployment.model.name} on {self.samples.identity['device']}",
            ranks={},
            model=self.deployment.model.name,
            launch="engine",
            machine={name: self.samples.identity[name] for name in ("device", "threads", "clock", "system")},
            versions={"kvplan": kvplan.__version__, "torch": torch.__version__, "python": platform.python_version()},
            source={name: self.samples.identity[name] for name in SETTINGS},
            memory=self.memory,
            notes=(
                f"kvplan calibrate: {len(self.points)} points, each measured {min(passes)} to {max(passes)} times; "
                "medians of whole forward passes, attention timed within them, the host by whole steps",
            ),
        )
        block_bytes = self.engine.pool.shape.block_bytes
        served = self.settings, self.longest
        return assemble(head, self.points, self.samples, self.deployment.model, block_bytes, served)


SETTINGS = ("attention", "dtype", "kv_cache_dtype", "layout", "block_size", "max_model_len", "max_num_batched_tokens",
            "max_num_seqs", "num_blocks")  # fmt: skip
"""What a profile says it was measured with."""


def calibrate(
    output: Path,
    overrides: Mapping[str, Any],
    options: EngineOptions,
    *,
    budget_s: float = 60.0,
    clock: str = "wall",
    resume: bool = False,
    block_sizes: Sequence[int] | None = None,
    kv_cache_dtypes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Profile:
    """Measures a model on a device and writes its profile.

    What is measured is kept beside ``output`` until the profile is written, so that a broken run can be resumed.

    Args:
        overrides: scenario leaves by dotted key; ``model`` among them.
        budget_s: chooses how many points there are; the first pass over them takes as long as it takes.
        clock: of `stopwatch.CLOCKS`.
        block_sizes, kv_cache_dtypes: see `Calibration`.

    Raises:
        InputError: see `Calibration`; no such clock; nothing to resume.
    """
    clock_of(clock, options.torch_device())
    if resume and not partial_path(output).exists():
        raise InputError("no interrupted run to go on with", field="--resume", source=str(partial_path(output)))
    scenario = calibrated_scenario(overrides, options.torch_device())
    calibration = Calibration(
        scenario,
        options,
        budget_s,
        clock,
        partial_path(output),
        block_sizes=block_sizes,
        kv_cache_dtypes=kv_cache_dtypes,
    )
    if resume:
        calibration.samples.resume()
    calibration.measure(progress)
    profile = calibration.profile()
    write_profile(profile, output)
    calibration.samples.discard()
    return profile


def _with_host_pool(pool: PoolShape, settings: Settings) -> PoolShape:
    """The pool with as many blocks on the host as the moves to be measured need."""
    if not settings.paged:
        return pool
    affordable = HOST_POOL_BYTES // pool.block_bytes
    return replace(pool, host_blocks=min(MOVED_BLOCKS[-1], affordable, pool.num_blocks - 1))


def _identity(deployment: Deployment, engine: Engine) -> dict[str, Any]:
    settings, device = deployment.settings, engine.device
    return {
        "model": deployment.model.name,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(terse=True),
        "torch": torch.__version__,
        "attention": engine.backend.name,
        "dtype": str(engine.decoder.dtype).removeprefix("torch."),
        "kv_cache_dtype": str(engine.pool.shape.dtype).removeprefix("torch."),
        "layout": settings.layout,
        "block_size": settings.block_size if settings.paged else 1,
        "max_model_len": settings.max_model_len,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_num_seqs": settings.max_num_seqs,
        "num_blocks": engine.pool.shape.num_blocks,
    }


def _processor() -> str:
    """The CPU's name where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _memory(engine: Engine, meter: Meter, before: DeviceMemory) -> dict[str, float]:
    """The memory terms in bytes: what stands, and what the largest prefill adds while it runs.

    ``runtime``: on a GPU what is neither torch's nor free (the context), on a CPU the process before the weights.
    ``activation_peak`` is what the allocator's peak rose by; a CPU says only by how much the process' own did.
    """
    device = engine.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    standing = device_memory(device)
    meter.run_largest()
    Stopwatch(device).wait()
    after = device_memory(device)
    if device.type == "cuda":
        runtime = standing.total_bytes - standing.free_bytes - standing.reserved_bytes
        activation = after.peak_bytes - standing.allocated_bytes
    else:
        runtime = before.allocated_bytes
        activation = max(after.peak_bytes - max(standing.peak_bytes, standing.allocated_bytes), 0)
    return {
        "total_bytes": float(standing.total_bytes),
        "weights_bytes": float(engine.decoder.weights_bytes),
        "pool_bytes": float(engine.pool.tensor.nbytes),
        "activation_peak_bytes": float(activation),
        "runtime_bytes": float(runtime),
        "remaining_bytes": float(after.free_bytes),
    }
