"""One deployment as a running engine: model, pool, executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings
from kvplan.engine.architecture import Architecture
from kvplan.engine.attention import Backend, backend_for
from kvplan.engine.decoder import Decoder
from kvplan.engine.device_memory import DeviceMemory, device_memory, require_memory
from kvplan.engine.executor import TorchExecutor
from kvplan.engine.histories import Histories
from kvplan.engine.loop import StepLog, run_steps
from kvplan.engine.pool import KvPool, PoolShape
from kvplan.engine.tokens import TokenIds
from kvplan.engine.weights import DTYPES, Weights, load_weights, random_weights
from kvplan.errors import InputError


@dataclass(frozen=True)
class EngineOptions:
    """How a deployment is to run, beside what the scenario says.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        attention: a name of `attention.BACKENDS`.
        weights: a folder with safetensors files; None: drawn from ``seed``.
        cuda_graphs: replay steps of pure decode from CUDA graphs.
    """

    device: str = "cpu"
    attention: str = "auto"
    weights: Path | None = None
    seed: int = 0
    cuda_graphs: bool = False

    def torch_device(self) -> torch.device:
        """Raises InputError where there is no such device."""
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = torch.device("meta")
        if device.type not in ("cpu", "cuda"):
            raise InputError("unknown device", field="--device", value=self.device, hint="cpu, cuda or cuda:N")
        if device.type == "cuda" and (
            not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
        ):
            raise InputError("torch sees no such GPU", field="--device", value=self.device, hint="--device cpu")
        return device


class Engine:
    """A decoder, a KV pool and a backend, ready to run workloads under the settings they were made for.

    Raises:
        InputError: settings that the engine does not execute.
        InfeasibleError: the pool does not fit the device.
    """

    def __init__(
        self,
        shape: Architecture,
        settings: Settings,
        pool: PoolShape,
        options: EngineOptions,
        weights: Weights | None = None,
    ) -> None:
        _require_executable(settings)
        device = options.torch_device()
        self.settings = settings
        self.backend: Backend = backend_for(options.attention, device, shape.head_dim, cuda_graphs=options.cuda_graphs)
        if weights is None:
            # Both at once: drawing the weights of a model whose pool does not fit would take minutes for nothing.
            needed = shape.parameters * DTYPES[shape.dtype].itemsize + pool.num_blocks * pool.block_bytes
            require_memory(device, needed, f"a {shape.dtype} model with its KV pool")
        if weights is None and options.weights is not None:
            weights = load_weights(shape, options.weights, device)
        elif weights is None:
            weights = random_weights(shape, device, options.seed)
        self.decoder = Decoder(shape, weights)
        self.pool = KvPool(pool, device)
        self.at_start: DeviceMemory = device_memory(device)

    @property
    def device(self) -> torch.device:
        return self.pool.device

    def recut(self, block_size: int, dtype: torch.dtype) -> Engine:
        """The same model in the same memory, its KV cache in other blocks or of another type: as many of them as the
        memory holds, and no more token slots than now. Only one of both may run at a time."""
        held = self.pool.shape
        shape = replace(held, block_size=block_size, dtype=dtype, host_blocks=0)
        slots = held.num_blocks * held.block_size
        blocks = min(self.pool.tensor.nbytes // shape.block_bytes, slots // block_size)
        engine = copy(self)
        engine.settings = replace(
            self.settings, block_size=block_size, num_gpu_blocks=blocks, host_blocks=0, preemption="recompute"
        )
        engine.pool = self.pool.recut(replace(shape, num_blocks=blocks))
        return engine

    def executor(self, workload: Workload, *, keep: bool = False, last_logits: bool = False) -> TorchExecutor:
        """An executor for one run of a workload; ``keep`` the token histories of finished requests."""
        histories = Histories(TokenIds(workload, self.decoder.shape.vocab_size), keep=keep)
        return TorchExecutor(self.decoder, self.pool, self.backend, histories, last_logits=last_logits)

    def warm_up(self) -> None:
        """Runs a prefill and a decode step of a small request, so that nothing is compiled or loaded in a timed one.

        It writes into blocks that a run overwrites before it reads them.
        """
        prompt = min(8, self.settings.max_model_len - 3, max(1, self.settings.max_num_batched_tokens))
        workload = Workload(np.zeros(1), np.array([max(1, prompt)]), np.array([2]))
        replica = Replica(self.settings, workload)
        run_steps(replica, self.executor(workload))

    def run(
        self,
        workload: Workload,
        *,
        names: list[str] | None = None,
        log: StepLog | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> EngineRun:
        """Executes a workload to its end."""
        replica = Replica(self.settings, workload)
        executor = self.executor(workload)
        seconds = run_steps(replica, executor, names=names, log=log, progress=progress)
        return EngineRun(replica, tuple(seconds), executor.compute_s, self.at_start, device_memory(self.device))


@dataclass(frozen=True, eq=False)
class EngineRun:
    """What an executed workload left behind.

    Args:
        replica: as it is at the end, with its recorder.
        seconds: of each executed step, host time included. compute_s: all steps' without it.
        at_start, at_end: the device's memory once the pool stood, and after the last step.
    """

    replica: Replica
    seconds: Sequence[float]
    compute_s: float
    at_start: DeviceMemory
    at_end: DeviceMemory

    def facts(self, engine: Engine) -> dict[str, Any]:
        """What the summary says of the engine."""
        device, pool = engine.device, engine.pool
        return {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "attention": engine.backend.name,
            "dtype": str(engine.decoder.dtype).removeprefix("torch."),
            "kv_cache_dtype": str(pool.shape.dtype).removeprefix("torch."),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "steps": len(self.seconds),
            "step_s": float(sum(self.seconds)),
            "compute_s": self.compute_s,
            "host_s": float(sum(self.seconds)) - self.compute_s,
            "memory": {
                "weights_bytes": engine.decoder.weights_bytes,
                "pool_bytes": pool.tensor.nbytes,
                "host_pool_bytes": pool.host.nbytes,
                "at_start": self.at_start.as_dict(),
                "at_end": self.at_end.as_dict(),
            },
        }


def _require_executable(settings: Settings) -> None:
    for group in settings.groups:
        if group.attention not in ("full", "sliding_window"):
            raise InputError("the engine does not execute this attention", field="model", value=group.attention)
