"""Paged attention in Triton: the kernels under kvplan's real engine, usable on their own.

::

    paged_attention             a planned, mixed batch: decode rows and prefill chunks in one step
    plan_batch                  its plan, made once a step from host lengths
    paged_decode_attention      one query token (or k) a sequence
    paged_prefill_attention     chunks over their cached prefixes
    contiguous_decode_attention the same tile without a block table
    mla_decode_attention        latent attention: one compressed row a token
    write_kv                    new K and V into their slots, quantizing
    copy_blocks                 copy-on-write
    gather_blocks, scatter_blocks   swap out, swap in

Cache layout: ``k_cache`` and ``v_cache`` are ``[num_blocks, block_size, num_kv_heads, head_dim]`` of any
strides whose last is 1 and which both share; a pool ``[layers, 2, num_blocks, block_size, num_kv_heads,
head_dim]`` gives each layer its pair as ``pool[layer].unbind(0)`` and ``pool.flatten(0, 1)`` to the block
moves. Torch references of all of it are in :mod:`kvplan_kernels.reference`.

This package knows nothing of kvplan; it imports torch and triton only. Triton 3.6 to 3.9, with
TRITON_INTERPRET=1 (set before ``import triton``) on a CPU.
"""

from kvplan_kernels.batch import BatchPlan, paged_attention, paged_prefill_attention, plan_batch
from kvplan_kernels.block_copy import copy_blocks, gather_blocks, scatter_blocks
from kvplan_kernels.cache_write import write_kv
from kvplan_kernels.decode import contiguous_decode_attention, paged_decode_attention
from kvplan_kernels.errors import KernelInputError
from kvplan_kernels.mla import mla_decode_attention

__all__ = [
    "BatchPlan",
    "KernelInputError",
    "contiguous_decode_attention",
    "copy_blocks",
    "gather_blocks",
    "mla_decode_attention",
    "paged_attention",
    "paged_decode_attention",
    "paged_prefill_attention",
    "plan_batch",
    "scatter_blocks",
    "write_kv",
]
