"""What an engine's profiling run adds to the weights: the activation peak, other allocations, CUDA graphs.

Engines measure these by running a dummy batch; kvplan estimates them from what that batch allocates. The
factors are fitted to figures that real vLLM servers logged on H100s; `tests/memory` states the error of each.

The peak is the larger of two moments. In the layers, ``max_num_batched_tokens`` rows hold the gate and up
projections, their product, and some copies of the hidden state. In the sampler, ``max_num_seqs`` rows of
logits over the whole vocabulary are held several times over in float32; before 0.17 also sorted, with 64-bit
indices.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog import ModelConfig
from kvplan.catalog.dtypes import dtype_bytes

GIB = 2**30

# Bytes held for each (row, vocabulary entry) while sampling. Fitted to 0.11-0.16: Llama-3.1-8B 4.76,
# Qwen3-14B 5.64, gpt-oss 7.38 GiB; and to 0.17-0.19: Llama-3.1-8B 1.89, Qwen3-14B 2.23, Gemma-2 3.62 GiB.
_SAMPLER_BYTES_BEFORE_0_17 = 38.4
_SAMPLER_BYTES = 14.94
# Copies of the hidden state alive beside the feed-forward part: CodeLlama-7B 0.77, granite-3.1-8b 0.85 GiB.
_HIDDEN_COPIES = 4.25
# A pipeline stage also holds its input's hidden state and residual: Llama-3.1-8B at PP 4 1.05 GiB.
_STAGE_COPIES = 2.0
# A multimodal model holds the encoder's output and the merged embeddings: Gemma-3-27B 3.99 GiB.
_MULTIMODAL_COPIES = 2.0


@dataclass(frozen=True)
class Estimate:
    """Bytes, and in words where they come from."""

    value: int
    origin: str


def activation_peak(
    model: ModelConfig,
    version: tuple[int, ...],
    *,
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
    stage: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
) -> Estimate:
    """vLLM's peak torch memory above the weights during its dummy run, on one rank."""
    if not model.layers:
        return Estimate(0, "no layers given")
    element = dtype_bytes(model.dtype)
    tokens, tp = max_num_batched_tokens, tensor_parallel_size
    hidden = tokens * model.hidden_size * element
    workspace = _expert_workspace(model, tokens, tp, element)
    copies = _HIDDEN_COPIES + (_STAGE_COPIES if pipeline_parallel_size > 1 else 0)
    extra = _MULTIMODAL_COPIES * hidden if model.other_parameters else 0
    width = max((layer.intermediate_size for layer in model.layers if layer.feed_forward == "dense"), default=0)
    width = max(width, model.shared_expert_intermediate_size)
    in_layers = tokens * (3 if model.gated_mlp else 2) * width / tp * element + copies * hidden + workspace + extra
    if stage != pipeline_parallel_size - 1:
        return Estimate(round(in_layers), f"formula: {tokens} tokens through the layers")
    rows = min(max_num_seqs, tokens)
    per_logit = _SAMPLER_BYTES if version >= (0, 17) else _SAMPLER_BYTES_BEFORE_0_17
    held = workspace if version >= (0, 17) else 0  # the experts' workspace is kept between calls since then
    in_sampler = rows * model.vocab_size * per_logit + hidden + held + extra
    if version < (0, 8) or (version < (0, 17) and _samples_lightly(model)):
        in_sampler = 0  # V0 samples nothing in its dummy run: Llama-3.1-8B in chunks of 512 took 0.06 GiB
    if in_sampler > in_layers:
        return Estimate(round(in_sampler), f"formula: {rows} rows of {model.vocab_size} logits in the sampler")
    return Estimate(round(in_layers), f"formula: {tokens} tokens through the layers")


def _samples_lightly(model: ModelConfig) -> bool:
    """Measured, not explained: Mistral 3 logged 2.12 GiB under 0.11, where the full sampler would have taken
    4.9."""
    return model.architecture in ("Mistral3ForConditionalGeneration", "PixtralForConditionalGeneration")


def _expert_workspace(model: ModelConfig, tokens: int, tp: int, element: float) -> float:
    """Two buffers of the fused expert kernel: the wider of its two products, and the activated one."""
    if not model.is_moe:
        return 0.0
    width = model.moe_intermediate_size / tp
    routed = tokens * model.num_experts_per_tok * element
    return routed * (max(2 * width, model.hidden_size) + width)


def non_torch(version: tuple[int, ...], tensor_parallel_size: int, pipeline_parallel_size: int) -> Estimate:
    """Memory outside the allocator: NCCL and all-reduce buffers, workspaces, the loaded kernels.

    Measured on H100s: 0.13 GiB (0.11-0.17) and 0.25 (0.18-0.19) on one GPU; 0.55 (0.11) and 2.07-2.13 (0.19,
    with the fused all-reduce's buffers) under tensor parallelism; 0.07 for a pipeline stage.
    """
    if tensor_parallel_size > 1:
        gib = (2.07 if tensor_parallel_size == 2 else 2.13) if version >= (0, 18) else 0.55
    elif pipeline_parallel_size > 1:
        gib = 0.07
    elif version < (0, 8):
        gib = 0.35
    else:
        gib = 0.25 if version >= (0, 18) else 0.13
    return Estimate(round(gib * GIB), "measured on H100 for this engine version and parallel layout")


def capture_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[int, ...]:
    """The batch sizes vLLM captures graphs for: 1, 2, 4, by 8 to 256, by 16 to min(2 x max_num_seqs, 512)."""
    largest = min(2 * max_num_seqs, 512, max_num_batched_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    return tuple(size for size in sizes if size <= largest)


def cuda_graphs(
    model: ModelConfig,
    *,
    layers: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    enforce_eager: bool = False,
) -> Estimate:
    """The engine's estimate of its captured graphs on one rank.

    vLLM captures piecewise graphs for every size and full ones for the decode sizes, and extrapolates: the
    first costs most, every further one a constant that grows with the layers. Gemma-3-27B (62 layers) logged
    172 MiB, then 12 a piecewise and 6 a full graph; Llama-3.1-8B (32 layers) 0.84 GiB in all.
    """
    if enforce_eager or not model.layers:
        return Estimate(0, "no graphs are captured" if enforce_eager else "no layers given")
    sizes = capture_sizes(max_num_seqs, max_num_batched_tokens)
    full = sum(size <= max_num_seqs for size in sizes)
    piece = _GRAPH_MIB + _GRAPH_MIB_PER_LAYER * layers
    mib = _FIRST_GRAPH_MIB + (len(sizes) - 1) * piece + max(0, full - 1) * piece / 2
    return Estimate(round(mib * 2**20), f"formula: {len(sizes)} piecewise and {full} full graphs of {layers} layers")


_FIRST_GRAPH_MIB = 172.0
_GRAPH_MIB = 6.2
_GRAPH_MIB_PER_LAYER = 0.094
