"""The KV memory: one tensor of the size that the plan says, a host pool behind it, and the moves between blocks.

======== =============================================================== ========================================
pool     [planes, 2, num_blocks, block_size, num_kv_heads, head_dim]     a plane serves one layer of each group
host     the same with host_blocks blocks, pinned beside a GPU           swap space
======== =============================================================== ========================================

Layers that cache alike form a group with a block table of its own; the j-th layer of every group keeps its tokens in
plane j, and since no block belongs to two groups, they never meet. Under the contiguous layout a "block" is one token
slot and an extent is a run of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from kvplan.core.settings import Settings
from kvplan.engine.architecture import Architecture
from kvplan.engine.device_memory import GIB, require_memory
from kvplan.errors import InfeasibleError

CACHE_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
"""K and V as they are stored. fp8 is e4m3 with one scale of 1 for all, vLLM's default without calibration."""

Pairs = NDArray[np.int32]
"""[n, 2]: (source, destination)."""


@dataclass(frozen=True)
class LayerPlace:
    """Where a layer's tokens lie: which block table leads to them, and in which plane."""

    group: int
    plane: int
    window: int


@dataclass(frozen=True)
class PoolShape:
    """How the KV memory is cut."""

    num_blocks: int
    block_size: int
    host_blocks: int
    layers: tuple[LayerPlace, ...]
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def planes(self) -> int:
        return 1 + max(layer.plane for layer in self.layers)

    @property
    def groups(self) -> int:
        return 1 + max(layer.group for layer in self.layers)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: its K and V in every plane."""
        return 2 * self.planes * self.block_size * self.num_kv_heads * self.head_dim * self.dtype.itemsize


def pool_shape(
    shape: Architecture, settings: Settings, members: Sequence[Sequence[int]], dtype: torch.dtype
) -> PoolShape:
    """The pool of a deployment.

    Args:
        members: for each cache group of ``settings`` the layers in it (the memory plan's `CacheGroup.members`);
            ignored under the contiguous layout, which keeps every layer in full.
    """
    if not settings.paged:
        members = [range(shape.num_hidden_layers)]
    places: dict[int, LayerPlace] = {}
    for group, layers in enumerate(members):
        for plane, layer in enumerate(layers):
            places[layer] = LayerPlace(group, plane, shape.windows[layer])
    return PoolShape(
        num_blocks=settings.num_gpu_blocks if settings.paged else settings.pool_slots,
        block_size=settings.block_size if settings.paged else 1,
        host_blocks=settings.host_blocks if settings.preemption == "swap" else 0,
        layers=tuple(places[layer] for layer in range(shape.num_hidden_layers)),
        num_kv_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        dtype=dtype,
    )


class KvPool:
    """The memory itself.

    Raises:
        InfeasibleError: the device (or the host, for the swap space) does not have so much.
    """

    def __init__(self, shape: PoolShape, device: torch.device) -> None:
        self.shape = shape
        self.device = device
        self.tensor = self._allocate(shape.num_blocks, device, pinned=False)
        self.host = self._allocate(shape.host_blocks, torch.device("cpu"), pinned=device.type == "cuda")

    def _allocate(self, blocks: int, device: torch.device, *, pinned: bool) -> torch.Tensor:
        s = self.shape
        size = (s.planes, 2, blocks, s.block_size, s.num_kv_heads, s.head_dim)
        require_memory(device, blocks * s.block_bytes, "a KV pool")
        try:
            tensor = torch.empty(size, dtype=s.dtype, device=device, pin_memory=pinned)
        except RuntimeError as error:  # what torch raises for want of memory, on either side
            raise InfeasibleError(
                f"a KV pool of {blocks * s.block_bytes / GIB:.2f} GiB does not fit into the memory of {device}",
                hint=f"fewer blocks: --num-gpu-blocks-override ({str(error).splitlines()[0]})",
            ) from error
        # Written, not only mapped: the pool must be resident before anything is timed, and NaN nowhere.
        tensor.view(torch.uint8).zero_()
        return tensor

    def recut(self, shape: PoolShape) -> KvPool:
        """The same memory in blocks of another shape, which may not be larger; without a host pool. What is written
        through one is noise through the other, and never NaN where both were zero."""
        pool = copy(self)
        pool.shape = replace(shape, host_blocks=0)
        size = (shape.planes, 2, shape.num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        wanted = shape.num_blocks * shape.block_bytes
        pool.tensor = self.tensor.view(torch.uint8).flatten()[:wanted].view(shape.dtype).view(size)
        pool.host = self.host[:, :, :0]
        return pool

    def keys_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One layer's K and V, [num_blocks, block_size, num_kv_heads, head_dim] each: views."""
        keys, values = self.tensor[self.shape.layers[layer].plane].unbind(0)
        return keys, values

    def blocks_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """[planes * 2, blocks, bytes of a block's plane]: a view for moves, which look at no value."""
        return tensor.view(torch.uint8).flatten(3).flatten(0, 1)

    def copy(self, pairs: Pairs) -> None:
        """Copies blocks as if all at once; where a destination appears twice the last one counts."""
        last = dict(zip(pairs[:, 1].tolist(), pairs[:, 0].tolist(), strict=True))
        if not last:
            return
        blocks = self.blocks_of(self.tensor)
        sources, destinations = self._index(list(last.values())), self._index(list(last))
        blocks[:, destinations] = blocks[:, sources]

    def swap_out(self, pairs: Pairs) -> None:
        """Moves (device block, host block): to the host pool, whose blocks count from 1."""
        sources = self._index(pairs[:, 0].tolist())
        self.blocks_of(self.host)[:, torch.from_numpy(pairs[:, 1].astype(np.int64) - 1)] = self.blocks_of(self.tensor)[
            :, sources
        ].cpu()

    def swap_in(self, pairs: Pairs) -> None:
        """Moves (host block, device block): back from the host pool."""
        rows = self.blocks_of(self.host)[:, torch.from_numpy(pairs[:, 0].astype(np.int64) - 1)]
        self.blocks_of(self.tensor)[:, self._index(pairs[:, 1].tolist())] = rows.to(self.device)

    def move_slots(self, source: int, destination: int, count: int) -> None:
        """Contiguous: copies a run of token slots to where it does not overlap."""
        if count:
            self.tensor[:, :, destination : destination + count] = self.tensor[:, :, source : source + count]

    def _index(self, ids: list[int]) -> torch.Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self.device)
