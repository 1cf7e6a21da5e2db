"""The attention backends by name, and how a step's batch goes through the decoder with one of them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from kvplan.engine.attention_torch import TorchAttention
from kvplan.engine.batch import StepBatch, on_device
from kvplan.engine.decoder import Decoder
from kvplan.engine.pool import KvPool
from kvplan.errors import InputError

BACKENDS = ("auto", "triton", "torch")


class Backend(Protocol):
    """Runs a batch."""

    name: str

    def forward(self, decoder: Decoder, pool: KvPool, batch: StepBatch, token_ids: NDArray[np.int64]) -> torch.Tensor:
        """Logits [samples, vocab] of the batch's ``sampled`` tokens. It may not have waited for the device."""
        ...


class TorchBackend:
    """Plain torch: any device."""

    name = "torch"

    def forward(self, decoder: Decoder, pool: KvPool, batch: StepBatch, token_ids: NDArray[np.int64]) -> torch.Tensor:
        return decoder.forward(*on_device(batch, token_ids, pool.device), TorchAttention(pool, batch))


def backend_for(name: str, device: torch.device, head_dim: int, *, cuda_graphs: bool = False) -> Backend:
    """The backend of that name; ``auto``: triton on a GPU, torch elsewhere.

    Raises:
        InputError: no such backend, or not on this device, or not for heads of this size.
    """
    if name not in BACKENDS:
        raise InputError(
            "unknown attention backend", field="--attention", value=name, hint="one of " + ", ".join(BACKENDS)
        )
    if name == "torch" or (name == "auto" and device.type != "cuda"):
        return TorchBackend()
    from kvplan.engine.attention_triton import TritonBackend, interpreted  # triton: not on every machine

    if device.type != "cuda" and not interpreted():
        raise InputError(
            "needs a GPU",
            field="--attention",
            value=name,
            hint="--attention torch runs anywhere; TRITON_INTERPRET=1 runs the kernels on a CPU, very slowly",
        )
    if head_dim % 16 or head_dim > 256:
        raise InputError(
            "the kernels take heads of a multiple of 16 up to 256",
            field="model.head_dim",
            value=head_dim,
            hint="--attention torch",
        )
    return TritonBackend(cuda_graphs=cuda_graphs and device.type == "cuda")
