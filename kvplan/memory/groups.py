"""Cache groups: which layers share a block table, how many tokens a block holds, what a request needs.

The rules are vLLM 0.33's (``v1/core/kv_cache_planning.py``, ``v1/kv_cache_interface.py``): layers of one kind
make one group; where kinds differ, all pages are made equal (small ones hold more tokens) and the layers are
dealt into groups of the size of the smallest kind, because all groups draw their blocks from one pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from kvplan.catalog import KvGroup, ModelConfig, StateSpace
from kvplan.catalog.architecture import Attention, kv_group_of
from kvplan.catalog.dtypes import dtype_bytes
from kvplan.errors import InputError
from kvplan.memory.kv_dtype import KvFormat, kv_format, token_bytes
from kvplan.memory.parallel import heads_per_rank

_PAD_RATIO = 1.5  # kinds whose layer counts lie closer than this share the larger count


@dataclass(frozen=True)
class CacheLayer:
    """One layer's part in a group: its place in the model and its bytes on one rank.

    ``token_bytes`` is 0 for state-space layers, whose page is one sequence's state.
    """

    index: int
    page_bytes: int
    token_bytes: int


@dataclass(frozen=True)
class CacheGroup:
    """Layers with one block table on one rank; ``block_size`` is the tokens that one of its blocks holds."""

    attention: Attention
    window: int
    block_size: int
    members: tuple[CacheLayer, ...]
    state_blocks: int = 0
    """Pages a sequence holds in a state-space group: 1, its speculative copies, and one more with prefix
    caching."""

    @property
    def layers(self) -> int:
        return len(self.members)

    @property
    def page_bytes(self) -> int:
        """One layer's part of a block (the largest, where layers of a group differ)."""
        return max((member.page_bytes for member in self.members), default=0)

    @property
    def bytes_per_block(self) -> int:
        """What a block of this group would need by itself."""
        return sum(member.page_bytes for member in self.members)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers of the group, padding not counted."""
        return sum(member.token_bytes for member in self.members)

    def blocks_per_request(self, length: int, in_flight_tokens: int) -> int:
        """Blocks a sequence of ``length`` tokens may hold at once, the admission cap of vLLM."""
        if self.attention == "state_space":
            return self.state_blocks
        if self.attention == "sliding_window":
            return _ceil(min(self.window - 1 + in_flight_tokens, length), self.block_size) + 1
        if self.attention == "chunked_local":
            return _ceil(min(self.window + in_flight_tokens, length), self.block_size)
        return _ceil(length, self.block_size)

    def resident_bytes(self, length: int) -> int:
        """Bytes that ``length`` tokens must keep, windows applied and blocks not rounded: the lower bound."""
        if self.attention == "state_space":
            return self.bytes_per_block
        return self.token_bytes * (min(length, self.window) if self.window else length)

    def on_stage(self, stage: range) -> CacheGroup:
        """The part of this group that one pipeline stage holds; it may be empty."""
        return replace(self, members=tuple(member for member in self.members if member.index in stage))


@dataclass(frozen=True)
class _Kind:
    group: KvGroup
    layers: tuple[int, ...]
    block_size: int
    page: int
    token: int


def cache_groups(
    model: ModelConfig,
    form: KvFormat,
    *,
    tensor_parallel_size: int = 1,
    block_size: int = 16,
    num_speculative_tokens: int = 0,
    prefix_caching_of_states: bool = False,
    hybrid: bool = True,
) -> tuple[CacheGroup, ...]:
    """The groups of the whole model as one rank of a tensor-parallel engine sees them.

    Args:
        prefix_caching_of_states: state-space layers keep a second page so that prefixes can be resumed.
        hybrid: False for engines (and ``--disable-hybrid-kv-cache-manager``) that give window layers full
        length.

    Raises:
        InputError: pages that cannot be made equal.
    """
    kinds = _kinds(model, form, tensor_parallel_size, block_size, num_speculative_tokens)
    if not hybrid:
        kinds = _merged(replace(kind, group=_as_full(kind.group)) for kind in kinds)
    states = 1 + num_speculative_tokens + (1 if prefix_caching_of_states else 0)
    if len({_allocation(kind.group) for kind in kinds}) == 1 and not model.declared_groups:
        return (_one_group(kinds, states),)
    kinds = _equal_pages(kinds)
    if model.declared_groups:
        return tuple(_group(kind, kind.layers, states) for kind in kinds)
    counts = [len(kind.layers) for kind in kinds]
    size = max(counts) if max(counts) < min(counts) * _PAD_RATIO else min(counts)
    groups = []
    for kind in kinds:
        number = _ceil(len(kind.layers), size)
        groups += [_group(kind, kind.layers[start::number], states) for start in range(number)]
    return tuple(groups)


def bytes_per_block(groups: Iterable[CacheGroup]) -> int:
    """Bytes of one block of the shared pool: what the largest group needs."""
    return max((group.bytes_per_block for group in groups), default=0)


def blocks_per_request(groups: Iterable[CacheGroup], length: int, in_flight_tokens: int) -> int:
    """Blocks one sequence of ``length`` tokens may hold in all groups together."""
    return sum(group.blocks_per_request(length, in_flight_tokens) for group in groups)


def state_bytes(state: StateSpace, model_dtype: str, tensor_parallel_size: int, num_speculative_tokens: int = 0) -> int:
    """One sequence's state in one layer of one rank; speculation widens the convolution's memory."""
    tp = tensor_parallel_size
    convolution = state.conv_channels // tp * (state.conv_kernel - 1 + num_speculative_tokens)
    matrix = prod((state.heads // tp, state.head_dim, state.state_dim))
    return int(convolution * dtype_bytes(model_dtype) + matrix * dtype_bytes(state.state_dtype))


def _kinds(model: ModelConfig, form: KvFormat, tp: int, block_size: int, speculative: int) -> list[_Kind]:
    if model.declared_groups:
        members, start = [], 0
        for group in model.declared_groups:
            members.append((group, tuple(range(start, start + group.layers))))
            start += group.layers
    else:
        members = [
            (
                group,
                tuple(i for i, layer in enumerate(model.layers) if layer.caches and _same(kv_group_of(layer), group)),
            )
            for group in model.kv_groups
        ]
    tokens = {group: _token(group, form, tp) for group, _ in members if group.attention != "state_space"}
    states = [group.state for group, _ in members if group.state is not None]
    if states and tokens:
        largest = max(state_bytes(state, model.dtype, tp, speculative) for state in states)
        per_token = max(tokens.values())
        align = max(block_size, 128 if model.is_mla else 16)
        block_size = max(block_size, align * _ceil(largest, align * per_token))
    kinds = []
    for group, layers in members:
        if group.state is not None:
            page = state_bytes(group.state, model.dtype, tp, speculative)
            if tokens:
                page = max(page, block_size * max(tokens.values()))
            kinds.append(_Kind(group, layers, block_size, page, 0))
        else:
            kinds.append(_Kind(group, layers, block_size, block_size * tokens[group], tokens[group]))
    return kinds


def _token(group: KvGroup, form: KvFormat, tp: int) -> int:
    """One token in one layer. Sparse MLA keeps an indexer's key too, and its fp8 cache has a layout of its own."""
    if group.indexer_bytes and form.name.startswith("fp8"):
        form = kv_format("fp8_ds_mla", "bfloat16")
    heads = heads_per_rank(group.num_key_value_heads, tp)
    return token_bytes(group.attention, heads, group.head_dim, group.value_head_dim, form) + group.indexer_bytes


def _same(one: KvGroup, other: KvGroup) -> bool:
    return replace(one, layers=0) == replace(other, layers=0)


def _allocation(group: KvGroup) -> tuple[object, ...]:
    """What decides how many blocks a sequence needs: groups that agree share one table, whatever their
    heads."""
    kind = "full" if group.attention in ("full", "mla") else group.attention
    return kind, group.window


def _as_full(group: KvGroup) -> KvGroup:
    if group.attention in ("sliding_window", "chunked_local"):
        return replace(group, attention="full", window=0)
    return group


def _merged(kinds: Iterable[_Kind]) -> list[_Kind]:
    """Kinds that have become equal, as one."""
    merged: list[_Kind] = []
    for kind in kinds:
        for place, other in enumerate(merged):
            if _same(kind.group, other.group) and kind.page == other.page:
                merged[place] = replace(other, layers=tuple(sorted(other.layers + kind.layers)))
                break
        else:
            merged.append(kind)
    return merged


def _one_group(kinds: Sequence[_Kind], states: int) -> CacheGroup:
    """All layers in one group; layers whose heads differ keep pages of different size."""
    members = [CacheLayer(index, kind.page, kind.token) for kind in kinds for index in kind.layers]
    first = kinds[0]
    return CacheGroup(
        first.group.attention,
        first.group.window,
        first.block_size,
        tuple(sorted(members, key=lambda member: member.index)),
        states if first.group.state else 0,
    )


def _equal_pages(kinds: Sequence[_Kind]) -> list[_Kind]:
    """Every page as large as the largest: more tokens where it divides, padding where it does not.

    Raises:
        InputError: an MLA page that does not divide the largest; the engine refuses it too.
    """
    largest = max(kind.page for kind in kinds)
    equal = []
    for kind in kinds:
        if kind.group.state is None and largest % kind.page == 0:
            kind = replace(kind, block_size=kind.block_size * (largest // kind.page))
        elif kind.group.attention == "mla" and kind.page != largest:
            raise InputError("MLA pages that do not divide the other groups' pages", field="model", value=kind.page)
        equal.append(replace(kind, page=largest))
    return equal


def _group(kind: _Kind, layers: tuple[int, ...], states: int) -> CacheGroup:
    return CacheGroup(
        kind.group.attention,
        kind.group.window,
        kind.block_size,
        tuple(CacheLayer(index, kind.page, kind.token) for index in layers),
        states if kind.group.state else 0,
    )


def _ceil(number: int, by: int) -> int:
    return -(-number // by)
