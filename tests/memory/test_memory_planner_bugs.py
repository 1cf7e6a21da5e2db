"""The faults that people reported in other planners, one test a kind: here they must not happen."""

from __future__ import annotations

import pytest

from kvplan.catalog import load_gpu, load_model
from kvplan.errors import InfeasibleError, InputError
from kvplan.memory import (
    MemoryOverrides,
    advise,
    cache_groups,
    kv_bytes_per_token,
    plan_memory,
    require_feasible,
    weights_bytes,
)
from kvplan.memory.kv_dtype import kv_format
from kvplan.memory.parallel import heads_per_rank, stage_layers, tensor_parallel_problem

GIB = 2**30
H100 = load_gpu("h100-sxm")


def test_gqa_is_not_counted_as_mha() -> None:
    """llm-d-benchmark 402, LLM-Viewer 12: the query heads were counted."""
    model = load_model("llama-3-8b")
    assert kv_bytes_per_token(model) == 2 * 32 * 8 * 128 * 2
    assert kv_bytes_per_token(model) * 4 == kv_bytes_per_token(load_model("llama-2-7b"))


def test_head_dim_is_the_configs_and_not_hidden_over_heads() -> None:
    """LMCache 2248 on GLM-4.5; model-memory-calculator 2 used the embedding's length."""
    model = load_model("glm-4.5")
    assert kv_bytes_per_token(model) == 2 * 92 * 8 * 128 * 2
    assert model.hidden_size // model.num_attention_heads == 53


def test_the_cache_follows_geometry_and_not_the_parameter_count() -> None:
    """ODS 3324, Minnow 854: two models of one size differ fourfold, and a large one may be cheaper."""
    assert kv_bytes_per_token(load_model("qwen3-30b-a3b")) < kv_bytes_per_token(load_model("llama-2-7b")) / 5
    assert kv_bytes_per_token(load_model("deepseek-v3")) < kv_bytes_per_token(load_model("qwen3-0.6b"))


def test_window_layers_are_counted() -> None:
    """hf-mem 60: gpt-oss-120b at length 1 was 36,864 bytes, half of the layers missing."""
    assert kv_bytes_per_token(load_model("gpt-oss-120b")) == 73_728


def test_both_the_engines_reservation_and_the_lower_bound_are_at_hand() -> None:
    """hf-mem 70: 6.09 GiB were shown where the engine without windows reserves 12.00."""
    groups = cache_groups(load_model("gpt-oss-20b"), kv_format("auto", "bfloat16"))
    bound = 32 * sum(group.resident_bytes(8192) for group in groups)
    assert bound / GIB == pytest.approx(6.09, abs=0.005)
    flat = cache_groups(load_model("gpt-oss-20b"), kv_format("auto", "bfloat16"), hybrid=False)
    blocks = sum(group.blocks_per_request(8192, 8192) for group in flat)
    assert 32 * blocks * flat[0].bytes_per_block / GIB == 12.0


@pytest.mark.parametrize(("name", "mib"), [("gemma-3-27b", 10_656), ("gpt-oss-20b", 3_075)])
def test_window_aware_bytes_at_131072_tokens(name: str, mib: int) -> None:
    """The exact figures of the reference table."""
    groups = cache_groups(load_model(name), kv_format("auto", "bfloat16"))
    assert round(sum(group.resident_bytes(131_072) for group in groups) / 2**20) == mib


def test_layers_are_counted_by_their_kind() -> None:
    """LMCache 3080, continuum 4156: four times too much for one attending layer in four."""
    assert kv_bytes_per_token(load_model("qwen3.5-27b")) == 16 * 2 * 4 * 256 * 2


@pytest.mark.parametrize(("heads", "tp", "rank"), [(8, 4, 2), (8, 8, 1), (8, 32, 1), (1, 2, 1), (4, 8, 1)])
def test_kv_heads_are_replicated_and_never_a_fraction(heads: int, tp: int, rank: int) -> None:
    """tenstorrent/vllm 50: 8 heads on 32 devices gave a quarter of a head."""
    assert heads_per_rank(heads, tp) == rank


def test_a_latent_cache_is_not_divided_by_tensor_parallelism() -> None:
    """kaito 2139, vllm 51454, sglang 13466."""
    model = load_model("kimi-k2")
    assert {kv_bytes_per_token(model, "auto", tp) for tp in (1, 2, 8)} == {61 * 576 * 2}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_the_pool_never_exceeds_the_gpu(tp: int) -> None:
    """inference-sim 474: the budget of all GPUs was divided by one GPU's block, TP times too many blocks."""
    plan = plan_memory(load_model("llama-3.1-8b"), H100, tensor_parallel_size=tp)
    assert plan.num_gpu_blocks * plan.bytes_per_block <= plan.requested_bytes - plan.weights_bytes


def test_per_rank_weights_are_divided_once() -> None:
    """configiq 21: a rank's weights were divided by TP again."""
    model = load_model("llama-3.1-8b")
    plan = plan_memory(model, H100, tensor_parallel_size=2)
    assert plan.weights_bytes == weights_bytes(model, 2)
    assert plan.weights_bytes == pytest.approx(weights_bytes(model) / 2, rel=0.01)


@pytest.mark.parametrize(("dtype", "factor"), [("fp8", 2.0), ("bfloat16", 1.0), ("float32", 0.5)])
def test_the_cache_has_a_type_of_its_own(dtype: str, factor: float) -> None:
    """inference-sim 1565, llm-d-planner 205: fp8 doubles the tokens and leaves the GiB."""
    model = load_model("llama-3.1-8b")
    auto, other = plan_memory(model, H100), plan_memory(model, H100, kv_cache_dtype=dtype)
    assert other.kv_cache_bytes == auto.kv_cache_bytes
    assert other.tokens_by_blocks == pytest.approx(factor * auto.tokens_by_blocks, abs=16)


def test_a_float32_model_has_a_float32_cache() -> None:
    assert kv_bytes_per_token(load_model({"base": "llama-3.1-8b", "dtype": "float32"})) == 262_144


def test_every_flag_moves_the_block_count() -> None:
    """inference-sim 1035 and 771: stored counts ignored block_size and utilization."""
    model = load_model("qwen3-14b")
    base = plan_memory(model, H100)
    assert plan_memory(model, H100, block_size=64).num_gpu_blocks == base.num_gpu_blocks // 4
    assert plan_memory(model, H100, gpu_memory_utilization=0.8).num_gpu_blocks < base.num_gpu_blocks
    assert plan_memory(model, H100, max_num_batched_tokens=65536).num_gpu_blocks < base.num_gpu_blocks
    assert plan_memory(model, H100, max_num_seqs=16).num_gpu_blocks > base.num_gpu_blocks


def test_the_override_counts_the_null_block() -> None:
    """vllm 35541: 50 blocks leave 49, and a request of 1,002 tokens needs 63: refused at the start, no loop."""
    plan = plan_memory(load_model("llama-3.1-8b"), H100, num_gpu_blocks_override=50, max_model_len=1002)
    assert plan.usable_blocks == 49
    assert [problem.kind for problem in plan.problems] == ["max_model_len"]
    assert "needs 63 blocks" in plan.problems[0].message
    assert plan_memory(load_model("llama-3.1-8b"), H100, num_gpu_blocks_override=64, max_model_len=1002).feasible


def test_too_small_a_cluster_is_told_the_smallest_that_works() -> None:
    """inference-sim 624: DeepSeek-V3 on two H100s failed without a way out."""
    plan = plan_memory(load_model("deepseek-v3"), H100, tensor_parallel_size=2, max_model_len=32768)
    assert advise(plan).tensor_parallel_size == 16
    with pytest.raises(InfeasibleError, match="tensor_parallel_size 16"):
        require_feasible(plan)


def test_a_model_that_cannot_fit_gets_no_figures() -> None:
    """aiconfigurator 509: Llama-3.1-405B on one H100 got a TTFT."""
    plan = plan_memory(load_model("llama-3.1-405b"), H100)
    assert (plan.feasible, plan.num_gpu_blocks) == (False, 0)
    assert plan.problems[0].kind == "no_cache"


def test_a_proposed_split_passes_its_own_check() -> None:
    """dynamo 10104, llm-d-planner 205: generated flags did not start; a TP that does not divide the vocabulary."""
    plan = plan_memory(load_model("qwen3-32b"), load_gpu("l40s"))
    size = advise(plan).tensor_parallel_size
    assert size is not None
    assert plan.model.vocab_size % size == 0
    assert plan_memory(plan.model, plan.gpu, tensor_parallel_size=size).feasible
    assert tensor_parallel_problem(load_model("qwen3-14b"), 5) is not None


@pytest.mark.parametrize(
    ("engine", "version", "pool"),
    [
        ("vllm", "0.19", 80 * 0.9 - 16 - 1 - 2),
        ("vllm", "0.33", 80 * 0.9 - 16 - 1 - 2 - 1),
        ("sglang", "0.5", (80 - 1) * 0.9 - 16),
        ("trtllm", "1.0", (80 - 16 - 1 - 2 - 1) * 0.9),
        ("lmdeploy", "0.9", (80 - 16 - 1) * 0.9),
    ],
)
def test_one_fraction_means_another_pool_on_each_engine(engine: str, version: str, pool: float) -> None:
    """aiconfigurator 1159: 0.9 on TRT-LLM, vLLM and SGLang."""
    terms = MemoryOverrides.from_gib(total=80, weights=16, non_torch=1, activation=2, cuda_graphs=1)
    model = load_model("llama-3.1-8b")
    plan = plan_memory(model, H100, engine=engine, version=version, gpu_memory_utilization=0.9, overrides=terms)
    assert plan.available_bytes / GIB == pytest.approx(pool)


def test_memory_beside_torch_is_part_of_the_sum() -> None:
    """ATOM 1649: 14 GB of non-torch memory were missing."""
    model = load_model("llama-3.1-8b")
    less = plan_memory(model, H100, overrides=MemoryOverrides.from_gib(non_torch=14))
    assert (
        plan_memory(model, H100, overrides=MemoryOverrides.from_gib(non_torch=0)).available_bytes - less.available_bytes
        == 14 * GIB
    )


def test_the_activation_peak_grows_with_the_widest_layer_and_with_the_vocabulary() -> None:
    """hf-mem 67, llm-analysis 4: the total left it out, or added up all layers."""

    def peak(seqs: int) -> int:
        return plan_memory(load_model("mistral-small-24b"), H100, version="0.19", max_num_seqs=seqs).activation_bytes

    assert peak(16) > 1.5 * GIB  # three times 32,768 wide, once
    assert peak(4096) > 3 * peak(16)  # rows of 131,072 logits


def test_a_pipeline_is_as_wide_as_its_narrowest_stage() -> None:
    """vllm 34076 and TensorRT-LLM 15740: the whole model was charged to a stage of 16 layers."""
    model = load_model("qwen3-30b-a3b-fp8")
    plan = plan_memory(
        model, H100, pipeline_parallel_size=2, pp_layer_partition=[16, 32], kv_cache_memory_bytes=8 * GIB
    )
    assert plan.bytes_per_block == 32 * 16 * kv_bytes_per_token(model) // 48
    assert plan.num_gpu_blocks == 8 * GIB // plan.bytes_per_block
    assert sorted(rank.layers for rank in plan.ranks) == [16, 32]


def test_layers_that_do_not_divide_go_before_the_last_stage() -> None:
    assert [len(stage) for stage in stage_layers(61, 4)] == [15, 15, 16, 15]
    assert [len(stage) for stage in stage_layers(94, 4)] == [23, 24, 24, 23]
    with pytest.raises(InputError, match="pipeline_parallel_size"):
        stage_layers(2, 3)


def test_both_definitions_of_tokens_are_stated() -> None:
    """configiq 112, vllm 43308: two capacities, and nobody said which."""
    plan = plan_memory(load_model("gemma-4-31b"), load_gpu("h200"), max_model_len=32768)
    assert plan.tokens_by_concurrency > 3 * plan.tokens_by_blocks
    assert plan.kv_cache_size_tokens == plan.tokens_by_concurrency
    older = plan_memory(load_model("gemma-4-31b"), load_gpu("h200"), max_model_len=32768, version="0.20")
    assert older.kv_cache_size_tokens == older.tokens_by_blocks


def test_block_scales_forbid_some_splits() -> None:
    """Qwen3-30B-A3B-FP8: experts 768 wide in blocks of 128 split two ways (384) and not four (192)."""
    model = load_model("qwen3-30b-a3b-fp8")
    assert tensor_parallel_problem(model, 2) is None
    assert "768 / 4 is no multiple" in str(tensor_parallel_problem(model, 4))
    assert tensor_parallel_problem(load_model("qwen3-30b-a3b"), 4) is None


def test_a_padded_vocabulary_divides() -> None:
    model = load_model({"base": "llama-3.1-8b", "vocab_size": 128_257})
    assert tensor_parallel_problem(model, 2) is None
