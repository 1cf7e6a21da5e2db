"""What one rank of a parallel engine holds: heads, layers, and what cannot be divided."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.catalog import ModelConfig
from kvplan.errors import InputError


def heads_per_rank(kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads of one rank: divided, and replicated rather than divided once TP exceeds them."""
    return max(1, kv_heads // tensor_parallel_size)


def stage_layers(layers: int, pipeline_parallel_size: int, partition: Sequence[int] | None = None) -> tuple[range, ...]:
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

    Query heads must divide; KV heads must divide or be replicated evenly; the vocabulary (padded to 64 rows) and the
    feed-forward widths must divide, into whole blocks where a checkpoint's scales cover blocks.
    """
    tp = tensor_parallel_size
    if tp == 1:
        return None
    reasons = []
    for heads in sorted({layer.num_attention_heads for layer in model.layers if layer.num_attention_heads}):
        if heads % tp:
            reasons.append(f"{heads} attention heads cannot be divided by {tp}")
    own = {layer.num_key_value_heads for layer in model.layers if layer.attention not in ("mla", "none", "state_space")}
    for kv_heads in sorted(own):
        if kv_heads % tp and tp % kv_heads:
            reasons.append(f"{kv_heads} KV heads can neither be divided by {tp} nor replicated over it")
    if padded_vocab(model.vocab_size) % tp:
        reasons.append(f"a vocabulary of {model.vocab_size} cannot be divided by {tp}")
    block = model.quantization.block[0] if model.quantization and model.quantization.block else 1
    for width in sorted({layer.intermediate_size for layer in model.layers if layer.intermediate_size}):
        if width % tp:
            reasons.append(f"a feed-forward width of {width} cannot be divided by {tp}")
        elif width // tp % block:
            reasons.append(f"a feed-forward width of {width} / {tp} is no multiple of the scales' block of {block}")
    return "; ".join(reasons) or None
