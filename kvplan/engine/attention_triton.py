"""Paged attention by `kvplan_kernels`: the kernels follow the core's block table on the device.

A step is planned once (`plan_batch`) and attended once a layer. Under the contiguous layout the kernels are told of
the extents as runs of the widest blocks, a power of two up to 256 slots, on which every extent of the step begins.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from kvplan.core.state import CONTIGUOUS, Core
from kvplan.engine.batch import Longs, StepBatch, on_device
from kvplan.engine.decode_graphs import DecodeGraphs
from kvplan.engine.decoder import Decoder
from kvplan.engine.pool import KvPool
from kvplan_kernels import paged_attention, plan_batch, write_kv

WIDEST_BLOCK = 256


class TritonAttention:
    """Attention of one step; see `decoder.Attention`."""

    def __init__(self, pool: KvPool, batch: StepBatch, *, query_heads: int, query_dtype: torch.dtype) -> None:
        shape, device = pool.shape, pool.device
        self._pool = pool
        context = batch.context
        self._plan = plan_batch(
            batch.tokens.tolist(),
            context.tolist(),
            num_query_heads=query_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            query_dtype=query_dtype,
            cache_dtype=shape.dtype,
            device=device,
        )
        self._slots = [torch.from_numpy(slots).to(device) for slots in batch.slots]
        self._block_size, tables = _tables(batch, int(context.max()))
        self._tables = [torch.from_numpy(table).to(device) for table in tables]
        quantized = shape.dtype.itemsize == 1
        self._scale = torch.ones(shape.num_kv_heads, device=device) if quantized else None

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        place = self._pool.shape.layers[layer]
        keys, values = self._pool.keys_values(layer)
        scales = {"k_scale": self._scale, "v_scale": self._scale}
        write_kv(key, value, keys, values, self._slots[place.group], **scales)
        if self._block_size != keys.shape[1]:
            keys, values = (_in_blocks(side, self._block_size) for side in (keys, values))
        return paged_attention(
            query, keys, values, self._tables[place.group], self._plan, window=place.window, **scales
        )


def _tables(batch: StepBatch, longest: int) -> tuple[int, list[np.ndarray]]:
    """Block size and, for each group, the int32 [rows, columns] table of the batch's rows."""
    core = batch.core
    if int(core.config["layout"][0]) == CONTIGUOUS:
        size, table = _extent_table(core, batch.row, longest)
        return size, [table]
    size = int(core.config["block_size"][0])
    columns = -(-longest // size)
    return size, [np.ascontiguousarray(core.tables[group, batch.row, :columns]) for group in range(len(core.groups))]


def _extent_table(core: Core, rows: Longs, longest: int) -> tuple[int, np.ndarray]:
    starts = core.extents["start"][core.extent_of[rows]]
    size = math.gcd(WIDEST_BLOCK, *starts.tolist())
    runs = starts[:, None] // size + np.arange(-(-longest // size))
    return size, runs.astype(np.int32)


def _in_blocks(side: torch.Tensor, size: int) -> torch.Tensor:
    """[slots, 1, kv heads, head_dim] as [slots // size, size, kv heads, head_dim].

    The last slots may fill no whole block. An extent may still reach there: the kernels find a token by the table
    alone and read none past a context, so that they stay inside the pool.
    """
    slots, _, heads, head_dim = side.shape
    stride = side.stride(0)
    return side.as_strided((slots // size, size, heads, head_dim), (size * stride, stride, head_dim, 1))


class TritonBackend:
    """The kernels; with ``cuda_graphs`` steps of decode rows alone are replayed from recorded graphs."""

    name = "triton"

    def __init__(self, *, cuda_graphs: bool = False) -> None:
        self._graphs = DecodeGraphs() if cuda_graphs else None

    def forward(self, decoder: Decoder, pool: KvPool, batch: StepBatch, token_ids: NDArray[np.int64]) -> torch.Tensor:
        if self._graphs is not None and self._graphs.takes(batch):
            return self._graphs.forward(decoder, pool, batch, token_ids)
        attention = TritonAttention(
            pool, batch, query_heads=decoder.shape.num_attention_heads, query_dtype=decoder.dtype
        )
        return decoder.forward(*on_device(batch, token_ids, pool.device), attention)


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, as TRITON_INTERPRET=1 asked for when triton was imported."""
    return bool(triton.knobs.runtime.interpret)
