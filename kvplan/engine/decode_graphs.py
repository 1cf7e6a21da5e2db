"""CUDA graphs for steps in which every row decodes one token: the launches of a step replayed in one.

A graph is recorded for each batch size of a ladder and replays at fixed addresses, so a step's inputs are copied into
buffers that the graph reads; rows beyond the batch are padding that writes nowhere (slot -1) and attends to one token
of the null block. How the tokens are split among programs is fixed when the graph is recorded, for the longest context.

Never run on a GPU by its authors: it is off unless asked for (``--cuda-graphs``), and the tests check its arithmetic
of sizes and inputs only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kvplan.core.state import CONTIGUOUS
from kvplan.engine.batch import StepBatch
from kvplan.engine.decoder import Decoder
from kvplan.engine.pool import KvPool
from kvplan_kernels import paged_decode_attention, write_kv

LADDER = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Batch sizes that are recorded when first met: vLLM's."""


def padded_size(rows: int) -> int:
    """The ladder's first size that holds ``rows``; 0 where none does."""
    return next((size for size in LADDER if size >= rows), 0)


@dataclass(frozen=True, eq=False)
class DecodeInputs:
    """What a graph reads, padded to its size B: token ids, positions, slots [G, B], context_lens [B] and block tables
    [G, B, columns]."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    context_lens: torch.Tensor
    tables: torch.Tensor

    @staticmethod
    def empty(size: int, groups: int, columns: int, device: torch.device) -> DecodeInputs:
        long, int32 = torch.int64, torch.int32
        return DecodeInputs(
            torch.zeros(size, dtype=long, device=device),
            torch.zeros(size, dtype=long, device=device),
            torch.full((groups, size), -1, dtype=long, device=device),
            torch.ones(size, dtype=int32, device=device),
            torch.zeros((groups, size, columns), dtype=int32, device=device),
        )

    def fill(self, batch: StepBatch, token_ids: NDArray[np.int64]) -> None:
        """The batch's rows, and padding behind them."""
        rows = len(batch.row)
        columns = -(-int(batch.context.max()) // int(batch.core.config["block_size"][0]))
        self.token_ids[:rows] = torch.from_numpy(token_ids)
        self.positions[:rows] = torch.from_numpy(batch.positions)
        self.slots.fill_(-1)
        self.slots[:, :rows] = torch.from_numpy(batch.slots)
        self.context_lens.fill_(1)
        self.context_lens[:rows] = torch.from_numpy(batch.context)
        self.tables[:, rows:, :1] = 0
        self.tables[:, :rows, :columns] = torch.from_numpy(batch.core.tables[:, batch.row, :columns])


class DecodeAttention:
    """Attention that reads `DecodeInputs`; see `decoder.Attention`."""

    def __init__(self, pool: KvPool, inputs: DecodeInputs) -> None:
        self._pool = pool
        self._inputs = inputs
        quantized = pool.shape.dtype.itemsize == 1
        self._scale = torch.ones(pool.shape.num_kv_heads, device=pool.device) if quantized else None

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        place = self._pool.shape.layers[layer]
        keys, values = self._pool.keys_values(layer)
        scales = {"k_scale": self._scale, "v_scale": self._scale}
        write_kv(key, value, keys, values, self._inputs.slots[place.group], **scales)
        return paged_decode_attention(
            query,
            keys,
            values,
            self._inputs.tables[place.group],
            self._inputs.context_lens,
            window=place.window,
            **scales,
        )


@dataclass(frozen=True, eq=False)
class _Graph:
    inputs: DecodeInputs
    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor


class DecodeGraphs:
    """Graphs by batch size, recorded when first met."""

    def __init__(self) -> None:
        self._graphs: dict[int, _Graph] = {}

    def takes(self, batch: StepBatch) -> bool:
        """Whether a graph can run the batch: decode rows alone, each sampling, paged, no more than the ladder holds."""
        rows = len(batch.row)
        paged = int(batch.core.config["layout"][0]) != CONTIGUOUS
        return paged and len(batch.positions) == len(batch.sampled) == rows and padded_size(rows) > 0

    def forward(self, decoder: Decoder, pool: KvPool, batch: StepBatch, token_ids: NDArray[np.int64]) -> torch.Tensor:
        size = padded_size(len(batch.row))
        if size not in self._graphs:
            self._graphs[size] = _record(decoder, pool, batch, size)
        found = self._graphs[size]
        found.inputs.fill(batch, token_ids)
        found.graph.replay()
        return found.logits[: len(batch.row)]


def _record(decoder: Decoder, pool: KvPool, batch: StepBatch, size: int) -> _Graph:
    """Runs a padded step twice beside the main stream, so that every kernel is compiled, then records it."""
    tables = batch.core.tables
    inputs = DecodeInputs.empty(size, tables.shape[0], tables.shape[2], pool.device)
    attention = DecodeAttention(pool, inputs)
    everything = torch.arange(size, device=pool.device)
    stream = torch.cuda.Stream(pool.device)
    stream.wait_stream(torch.cuda.current_stream(pool.device))
    with torch.cuda.stream(stream):
        for _ in range(2):
            decoder.forward(inputs.token_ids, inputs.positions, everything, attention)
    torch.cuda.current_stream(pool.device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = decoder.forward(inputs.token_ids, inputs.positions, everything, attention)
    return _Graph(inputs, graph, logits)
