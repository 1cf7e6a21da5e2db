"""What one replica is told: the scheduler's and the cache's settings, by vLLM's names, and their compiled form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.core import state
from kvplan.errors import InputError

LAYOUTS = {"paged": state.PAGED, "contiguous": state.CONTIGUOUS, "page_mapped": state.PAGED}
RESERVATIONS = {
    "max": state.RESERVE_MAX,
    "pow2": state.RESERVE_POW2,
    "oracle": state.RESERVE_ORACLE,
    "grow": state.RESERVE_GROW,
}
PLACEMENTS = {"buddy": state.BUDDY, "first-fit": state.FIRST_FIT, "best-fit": state.BEST_FIT}
POLICIES = {"fcfs": state.FCFS, "priority": state.PRIORITY}
BATCHING = {"continuous": state.CONTINUOUS, "static": state.STATIC}
PREEMPTION = {"recompute": state.RECOMPUTE, "swap": state.SWAP}
ADMISSION = {
    "vllm": state.ADMIT_VLLM,
    "guaranteed_no_evict": state.ADMIT_GUARANTEED_NO_EVICT,
    "max_utilization": state.ADMIT_MAX_UTILIZATION,
}
KINDS = {
    "full": state.FULL,
    "mla": state.FULL,
    "sliding_window": state.SLIDING_WINDOW,
    "chunked_local": state.CHUNKED_LOCAL,
    "state_space": state.STATE_SPACE,
}


@dataclass(frozen=True)
class CacheGroup:
    """Layers that keep the same tokens: one block table.

    Args:
        attention: full, mla, sliding_window, chunked_local or state_space.
        window: tokens of the window or the chunk, 0 for the others.
    """

    attention: str = "full"
    window: int = 0


@dataclass(frozen=True)
class Settings:
    """Settings of one replica.

    Args:
        num_gpu_blocks: blocks of the pool, the null block counted (paged).
        pool_slots: token slots of the pool (contiguous).
        block_bytes: bytes of one block on one GPU, all layers of its group: for the cost of copies and swaps.
        host_blocks: blocks of the swap space.
        beam_survival: chance that a beam goes on from itself, see `scheduler.choose_beams`; 0.9 gives the sharing that
            PagedAttention, figure 15, reports of Alpaca.

    The other names are vLLM's flags or DESIGN's keys. `layout="page_mapped"` is paging whose block is one physical
    page of a layer's K (or V): the caller gives `block_size` in tokens.
    """

    block_size: int = 16
    num_gpu_blocks: int = 0
    pool_slots: int = 0
    layout: str = "paged"
    reservation: str = "max"
    placement: str = "buddy"
    enable_prefix_caching: bool = False
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_chunked_prefill: bool = True
    scheduling_policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    batching: str = "continuous"
    preemption: str = "recompute"
    admission: str = "vllm"
    host_blocks: int = 0
    num_speculative_tokens: int = 0
    acceptance_rate: float = 0.0
    draft_slots: bool = False
    beam_survival: float = 0.9
    seed: int = 0
    skip: bool = True
    block_bytes: float = 0.0
    groups: tuple[CacheGroup, ...] = (CacheGroup(),)

    def __post_init__(self) -> None:
        for name, allowed in (
            ("layout", LAYOUTS),
            ("reservation", RESERVATIONS),
            ("placement", PLACEMENTS),
            ("scheduling_policy", POLICIES),
            ("batching", BATCHING),
            ("preemption", PREEMPTION),
            ("admission", ADMISSION),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"must be one of {', '.join(allowed)}", field=name, value=getattr(self, name))
        for name in ("block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise InputError("must be at least 1", field=name, value=getattr(self, name))
        for name in ("block_size", "max_num_seqs"):
            if getattr(self, name) > state.MOST_IN_U2:
                raise InputError(f"must be at most {state.MOST_IN_U2:,}", field=name, value=getattr(self, name))
        if self.paged and self.num_gpu_blocks < 2:
            raise InputError(
                "the pool needs at least one block beside the null block",
                field="num_gpu_blocks",
                value=self.num_gpu_blocks,
            )
        if not self.paged and self.pool_slots < 1:
            raise InputError("the pool is empty", field="pool_slots", value=self.pool_slots)
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise InputError(
                f"must be at least max_model_len ({self.max_model_len}) when chunked prefill is off",
                field="max_num_batched_tokens",
                value=self.max_num_batched_tokens,
                hint="set enable_chunked_prefill: true, or raise max_num_batched_tokens",
            )
        self._refuse_mixtures()

    def _refuse_mixtures(self) -> None:
        """Refuses pairs of settings that no engine runs together and whose meaning would be a guess."""
        kinds = {group.attention for group in self.groups}
        for together, field, why in (
            (self.enable_prefix_caching and not self.paged, "enable_prefix_caching", "needs layout: paged"),
            (self.preemption == "swap" and not self.paged, "preemption", "swap needs layout: paged"),
            (
                self.preemption == "swap" and self.async_scheduling,
                "preemption",
                "swap excludes async_scheduling",
            ),
            (
                self.batching == "static" and self.async_scheduling,
                "batching",
                "static batching excludes async_scheduling",
            ),
            (
                self.batching == "static" and self.enable_prefix_caching,
                "batching",
                "static batching excludes prefix caching",
            ),
            (
                self.enable_prefix_caching and "state_space" in kinds,
                "enable_prefix_caching",
                "not available with state-space layers, whose state cannot be cut at a block",
            ),
            (
                not self.paged and self.groups != (CacheGroup(),),
                "layout",
                "contiguous needs one group of full attention (extents hold every token of every layer)",
            ),
            (
                self.num_speculative_tokens > 0 and self.async_scheduling,
                "num_speculative_tokens",
                "speculative decoding excludes async_scheduling",
            ),
        ):
            if together:
                raise InputError(why, field=field, value=getattr(self, field))

    @property
    def paged(self) -> bool:
        return self.layout != "contiguous"

    @property
    def total_slots(self) -> int:
        return (self.num_gpu_blocks - 1) * self.block_size if self.paged else self.pool_slots


def admission_cap(settings: Settings, group: CacheGroup) -> int:
    """Most blocks a windowed group holds between two steps, 0 for no cap (vLLM's recycling-aware admission cap)."""
    in_flight = settings.max_num_batched_tokens * (2 if settings.async_scheduling else 1)
    in_flight += settings.num_speculative_tokens if settings.draft_slots else 0
    if group.attention == "sliding_window":
        tokens = min(group.window - 1 + in_flight, settings.max_model_len)
        return -(-tokens // settings.block_size) + 1
    if group.attention == "chunked_local":
        tokens = min(group.window + in_flight, settings.max_model_len)
        return -(-tokens // settings.block_size) + (1 if group.window % settings.block_size else 0)
    return 0


def config_record(settings: Settings, *, stride: int, outputs_shared: bool) -> NDArray[Any]:
    """The settings as the compiled core reads them (CONFIG[1])."""
    record = np.zeros(1, state.CONFIG)
    c = record[0]
    c["layout"] = LAYOUTS[settings.layout]
    c["block_size"] = settings.block_size
    c["usable_blocks"] = settings.num_gpu_blocks - 1 if settings.paged else 0
    c["total_slots"] = settings.total_slots
    c["prefix_caching"] = settings.enable_prefix_caching
    c["reservation"] = RESERVATIONS[settings.reservation]
    c["placement"] = PLACEMENTS[settings.placement]
    c["max_model_len"] = settings.max_model_len
    c["max_num_seqs"] = settings.max_num_seqs
    c["max_num_batched_tokens"] = settings.max_num_batched_tokens
    c["chunked_prefill"] = settings.enable_chunked_prefill
    c["policy"] = POLICIES[settings.scheduling_policy]
    c["long_prefill_token_threshold"] = settings.long_prefill_token_threshold
    c["watermark_blocks"] = int(settings.watermark * settings.num_gpu_blocks)
    c["reserve_full_isl"] = settings.scheduler_reserve_full_isl
    c["async_scheduling"] = settings.async_scheduling
    c["batching"] = BATCHING[settings.batching]
    c["preemption"] = PREEMPTION[settings.preemption]
    c["admission"] = ADMISSION[settings.admission]
    c["host_blocks"] = settings.host_blocks
    c["speculative_tokens"] = settings.num_speculative_tokens
    c["acceptance_rate"] = settings.acceptance_rate
    c["lookahead_tokens"] = settings.num_speculative_tokens if settings.draft_slots else 0
    c["beam_survival"] = settings.beam_survival
    c["seed"] = settings.seed
    c["stride"] = stride
    c["skip"] = settings.skip
    c["outputs_shared"] = outputs_shared
    c["block_bytes"] = settings.block_bytes
    return record
