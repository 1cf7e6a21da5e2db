"""What one rank of a parallel engine holds: heads, layers, and what cannot be divided."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.catalog import ModelConfig
from kvplan.errors import InputError


def heads_per_rank(kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads of one rank: divided, and replicated rather than divided once TP exceeds them."""
    return max(1, kv_heads // tensor_parallel_size)


def stage_layers(
    layers: int, pipeline_parallel_size: int, partition: Sequence[int] | None = None
) -> tuple[range, ...]:
    """The layers of each pipeline stage, as vLLM cuts them (``distributed/utils.py``, 0.33).

    Layers that do not divide go one each to the stages before the last, from the back; ``partition`` is
    ``VLLM_PP_LAYER_PARTITION``.

    Raises:
        InputError: more stages than layers, or a partition that does not add up.
    """
    stages = pipeline_parallel_size
    if partition is not None:
        if len(partition) != stages or sum(partition) != layers:
            raise InputError(
                f"must name {stages} stages that sum to {layers} layers",
                field="pp_layer_partition",
                value=list(partition),
            )
        sizes = list(partition)
    else:
        if stages > layers:
            raise InputError(f"the model has {layers} layers", field="pipeline_parallel_size", value=stages)
        sizes = [layers // stages] * stages
        for back in range(2, layers % stages + 2):
            sizes[-back] += 1
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def padded_vocab(vocab_size: int, multiple: int = 64) -> int:
    """Rows of an embedding table as vLLM pads it."""
    return -(-vocab_size // multiple) * multiple


def tensor_parallel_problem(model: ModelConfig, tensor_parallel_size: int) -> str | None:
    """Why this model cannot be split so many ways, or None.

    Query heads must divide; KV heads must divide or be divided by the size; the vocabulary must divide after
    padding to 64 rows, and the feed-forward width must divide.
    """
    tp = tensor_parallel_size
    if tp < 1:
        return f"tensor_parallel_size {tp} is not positive"
    if tp == 1:
        return None
    for heads in {layer.num_attention_heads for layer in model.layers if layer.num_attention_heads}:
        if heads % tp:
            return f"{heads} attention heads cannot be divided by {tp}"
    for kv_heads in {
        layer.num_key_value_heads for layer in model.layers if layer.attention not in ("mla", "none")
    }:
        if kv_heads and kv_heads % tp and tp % kv_heads:
            return f"{kv_heads} KV heads can neither be divided by {tp} nor replicated over it"
    if model.vocab_size and model.vocab_size % tp:
        return f"a vocabulary of {model.vocab_size} cannot be divided by {tp}"
    for width in {layer.intermediate_size for layer in model.layers if layer.feed_forward == "dense"}:
        if width % tp:
            return f"a feed-forward width of {width} cannot be divided by {tp}"
    return None
