"""Bytes of the weights on one rank, from the config alone, or exactly from a checkpoint's own table of
contents."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.catalog import ModelConfig, Quantization
from kvplan.catalog.dtypes import dtype_bytes
from kvplan.errors import InputError
from kvplan.memory.parallel import stage_layers
from kvplan.memory.parameters import FIRST, LAST, Weight, weights


def weights_bytes(
    model: ModelConfig,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    rank: int = 0,
    *,
    partition: Sequence[int] | None = None,
) -> int:
    """What vLLM logs as ``Model loading took``, for one rank.

    Args:
        rank: the pipeline stage (tensor-parallel ranks of a stage hold equally much).
        partition: layers a stage where they are not cut evenly (``VLLM_PP_LAYER_PARTITION``).

    The rotary table counts: it is allocated with the model (32 MiB for Llama 3.1's 131,072 positions), and it
    is why half of a model is a little more than half of its bytes.

    Raises:
        InputError: no such stage.
    """
    if not model.layers:
        return 0
    stages = stage_layers(model.num_hidden_layers, pipeline_parallel_size, partition)
    if not 0 <= rank < len(stages):
        raise InputError(f"there are {len(stages)} pipeline stages", field="rank", value=rank)
    stage = stages[rank]
    tp = tensor_parallel_size
    held = sum(
        _bytes(weight, model, tp) for weight in weights(model) if _on_stage(weight, stage, rank, len(stages), model)
    )
    return round(held) + rotary_table_bytes(model)


def rotary_table_bytes(model: ModelConfig) -> int:
    """Cosines and sines for every position, once a rank, in the model's type."""
    return int(sum(rows * width for rows, width in model.rotary_tables) * dtype_bytes(model.dtype))


def _on_stage(weight: Weight, stage: range, rank: int, stages: int, model: ModelConfig) -> bool:
    if weight.layer == FIRST:
        tied_head = model.tie_word_embeddings and weight.name == "embedding" and rank == stages - 1
        return rank == 0 or tied_head
    if weight.layer == LAST:
        return rank == stages - 1
    return weight.layer in stage


def _bytes(weight: Weight, model: ModelConfig, tp: int) -> float:
    """One weight on one rank; the split side is the outputs, which the bytes do not depend on except in
    padding."""
    share = 1.0
    if weight.split == "tensor":
        share = 1 / tp
    elif weight.split == "kv_heads":
        share = max(1, weight.kv_heads // tp) / weight.kv_heads
    if model.quantization is None or not _quantized(weight, model.quantization):
        return weight.parameters * share * dtype_bytes(model.dtype)
    return _quantized_bytes(weight, model.quantization, dtype_bytes(model.dtype)) * share


def _quantized(weight: Weight, quantization: Quantization) -> bool:
    if not weight.linear:
        return False
    if quantization.method == "mxfp4":  # gpt-oss: the experts alone
        return weight.part == "experts"
    return weight.part not in quantization.excluded


def _quantized_bytes(weight: Weight, quantization: Quantization, scale_bytes: float) -> float:
    rows, columns, count = weight.rows, weight.columns, weight.count
    if quantization.method == "mxfp4":
        return count * _mxfp4_bytes(rows, columns)
    values = rows * columns * quantization.bits / 8
    if quantization.block is not None:  # fp8 in two-dimensional blocks: one float32 each
        scales = -(-rows // quantization.block[0]) * -(-columns // quantization.block[1]) * 4.0
    elif quantization.method == "nvfp4":  # one fp8 scale for sixteen values
        scales = rows * columns / (quantization.group_size or 16)
    elif quantization.group_size > 0:
        groups = -(-rows // quantization.group_size)
        scales = groups * columns * scale_bytes
        if quantization.zero_points:
            scales += groups * columns * quantization.bits / 8
        if quantization.method == "gptq":  # g_idx: an int32 an input
            scales += rows * 4
    elif quantization.group_size == 0:  # one float32 an output channel
        scales = columns * 4.0
    else:  # one a tensor
        scales = 4.0
    return count * (values + scales)


def _mxfp4_bytes(rows: int, columns: int) -> float:
    """Half a byte a value and one scale byte for 32, as vLLM's Hopper kernels lay them out.

    They pad the input side of the values to 256 (2,880 to 3,072 in gpt-oss), which is why gpt-oss-120b takes
    64.4 GiB on a GPU and 60.8 on disk.
    """
    padded = -(-rows // 256) * 256
    return padded * columns / 2 + rows * columns / 32
