"""Paged attention in plain torch, on any device: the reference, and what a CPU runs.

K and V are gathered through the block table into dense tensors, then attended with torch's own kernels. Decode rows
of like context are one padded batch; each prefill chunk is a batch of its own. Only slots that a row owns are read:
a padded place repeats the row's last token and is masked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from kvplan.engine.batch import Longs, StepBatch
from kvplan.engine.pool import KvPool

SHORT = 64
"""Contexts up to this many tokens are not worth telling apart."""


@dataclass(frozen=True)
class _Part:
    """Rows that are attended in one call: b rows of t query tokens over w gathered tokens.

    Args:
        places: [b * t], the query tokens in the step.
        slots: [b, w]. mask: [b, 1, t, w], False where a token is not seen.
    """

    places: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor


class TorchAttention:
    """Attention of one step; see `decoder.Attention`."""

    def __init__(self, pool: KvPool, batch: StepBatch) -> None:
        self._pool = pool
        device = pool.device
        self._slots = torch.from_numpy(batch.slots).to(device)
        self._parts = {
            (place.group, place.window): _parts(batch, place.group, place.window, device)
            for place in set(pool.shape.layers)
        }

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        place = self._pool.shape.layers[layer]
        keys, values = (_rows(side) for side in self._pool.keys_values(layer))
        slots = self._slots[place.group]
        keys[slots] = _stored(key, self._pool.shape.dtype)
        values[slots] = _stored(value, self._pool.shape.dtype)
        out = torch.empty_like(query)
        for part in self._parts[place.group, place.window]:
            k, v = (self._gathered(side, part.slots, query.dtype) for side in (keys, values))
            out[part.places] = _attend(query[part.places], k, v, part.mask)
        return out

    def _gathered(self, side: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[b, kv heads, w, head_dim] in the query's dtype."""
        return side[slots].view(self._pool.shape.dtype).to(dtype).transpose(1, 2)


def _rows(side: torch.Tensor) -> torch.Tensor:
    """[slots, kv heads, head_dim], a view; one-byte types as raw bytes, which torch can index everywhere."""
    flat = side.flatten(0, 1)
    return flat.view(torch.uint8) if flat.element_size() == 1 else flat


def _stored(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float8_e4m3fn:
        limit = torch.finfo(dtype).max
        return x.clamp(-limit, limit).to(dtype).view(torch.uint8)
    return x.to(dtype)


def _parts(batch: StepBatch, group: int, window: int, device: torch.device) -> list[_Part]:
    decode = np.flatnonzero(batch.tokens == 1)
    rows = [*_alike(decode, batch.context[decode]), *(np.array([row]) for row in np.flatnonzero(batch.tokens > 1))]
    return [_part(batch, group, window, chosen, device) for chosen in rows]


def _alike(rows: Longs, context: Longs) -> list[Longs]:
    """The rows in classes of contexts within a factor of two, so that padding at most doubles what is gathered."""
    classes = np.ceil(np.log2(np.maximum(context, SHORT)))
    return [rows[classes == one] for one in np.unique(classes)]


def _part(batch: StepBatch, group: int, window: int, rows: Longs, device: torch.device) -> _Part:
    """Rows with equally many tokens."""
    tokens = int(batch.tokens[rows[0]])
    first = np.maximum(0, batch.computed[rows] - window + 1) if window else np.zeros(len(rows), np.int64)
    last = batch.context[rows] - 1
    seen = first[:, None] + np.arange(int((last - first).max()) + 1)
    slots = batch.slots_at(group, rows[:, None], np.minimum(seen, last[:, None]))
    position = (batch.computed[rows][:, None] + np.arange(tokens))[:, :, None]
    mask = seen[:, None, :] <= position
    if window:
        mask &= seen[:, None, :] > position - window
    places = (batch.starts[rows][:, None] + np.arange(tokens)).ravel()
    return _Part(*(torch.from_numpy(array).to(device) for array in (places, slots, mask[:, None])))


def _attend(query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """query [b · t, heads, head_dim] over k, v [b, kv heads, w, head_dim].

    The query heads of one KV head are stacked along the tokens, so that K and V are read once and never repeated.
    """
    b, kv_heads, _, head_dim = k.shape
    t, group = mask.shape[2], query.shape[1] // kv_heads
    stacked = (
        query.view(b, t, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4).reshape(b, kv_heads, group * t, head_dim)
    )
    out = F.scaled_dot_product_attention(stacked, k, v, attn_mask=mask.repeat(1, 1, group, 1))
    return out.view(b, kv_heads, group, t, head_dim).permute(0, 3, 1, 2, 4).reshape(b * t, kv_heads * group, head_dim)
