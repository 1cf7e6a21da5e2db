"""What an engine does when a flag is left out, by its version and by the GPU it finds."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog import Gpu, ModelConfig
from kvplan.errors import InputError

GIB = 2**30
ENGINES = ("vllm", "sglang", "trtllm", "lmdeploy")


@dataclass(frozen=True)
class EngineDefaults:
    """The defaults of one engine version on one GPU (for the OpenAI server, not the offline class).

    ``gpu_memory_utilization`` is each engine's own fraction; what it is a fraction *of* differs
    (`kvplan.memory.other_engines`). ``graphs_charged``: CUDA graphs are subtracted before the pool is sized.
    ``tokens_by_concurrency``: the logged token figure is concurrency x max_model_len, not blocks x
    block_size.
    """

    engine: str
    version: str
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    block_size: int
    async_scheduling: bool
    watermark: float
    scheduler_reserve_full_isl: bool
    swap_space_gib: float
    graphs_charged: bool
    tokens_by_concurrency: bool


def parse_version(version: str) -> tuple[int, ...]:
    """``"0.33"``, ``"v0.11.0rc1"`` or ``"V0"`` as comparable numbers.

    Raises:
        InputError: no number in it.
    """
    text = str(version).strip().lower().lstrip("v")
    numbers: list[int] = []
    for part in text.split("."):
        digits = ""
        for letter in part:
            if not letter.isdigit():
                break
            digits += letter
        if not digits:
            break
        numbers.append(int(digits))
    if not numbers:
        raise InputError("not a version", field="engine.version", value=version, hint='for example "0.33"')
    return tuple(numbers)


def engine_defaults(
    engine: str,
    version: str,
    gpu: Gpu,
    model: ModelConfig,
    *,
    max_model_len: int | None = None,
    enable_chunked_prefill: bool | None = None,
) -> EngineDefaults:
    """The defaults that ``engine`` of ``version`` takes for ``model`` on ``gpu``.

    Args:
        max_model_len: matters for old versions and without chunked prefill, where the token budget is at
        least it.

    Raises:
        InputError: an engine kvplan does not know, or a version it cannot read.
    """
    name = engine.strip().lower().replace("-", "").replace("_", "")
    name = {"tensorrtllm": "trtllm", "turbomind": "lmdeploy"}.get(name, name)
    if name not in ENGINES:
        raise InputError("unknown engine", field="engine", value=engine, hint="one of " + ", ".join(ENGINES))
    numbers = parse_version(version)
    length = max_model_len or model.max_position_embeddings
    if name == "vllm":
        return _vllm(version, numbers, gpu, length, enable_chunked_prefill)
    if name == "sglang":
        return _sglang(version, gpu)
    if name == "trtllm":
        return _trtllm(version)
    return _lmdeploy(version)


def _vllm(version: str, numbers: tuple[int, ...], gpu: Gpu, max_model_len: int, chunked: bool | None) -> EngineDefaults:
    """vLLM's ``arg_utils`` and ``config``: V1 became the engine in 0.8; before it, V0."""
    v1 = numbers >= (0, 8)
    if chunked is None:  # V0 turned it on by itself above 32k tokens
        chunked = v1 or max_model_len > 32768
    seqs, tokens = 256, 2048
    if numbers >= (0, 8, 5):
        large = gpu.memory_bytes >= 70 * GIB and "a100" not in gpu.name.lower() and gpu.compute_capability != "12.1"
        if large:
            seqs, tokens = (1024 if numbers >= (0, 9) else 256), 8192
        if numbers >= (0, 26) and gpu.memory_bytes >= 160 * GIB:
            tokens = 16384
    elif not v1:
        tokens = 512 if chunked else max(max_model_len, 2048)
    if not chunked:
        tokens = max(tokens, max_model_len)
    if max_model_len:
        tokens = min(tokens, seqs * max_model_len)
    return EngineDefaults(
        engine="vllm",
        version=version,
        gpu_memory_utilization=0.92 if numbers >= (0, 20) else 0.9,
        max_num_seqs=min(seqs, tokens),
        max_num_batched_tokens=tokens,
        enable_prefix_caching=v1,
        enable_chunked_prefill=chunked,
        block_size=16,
        async_scheduling=numbers >= (0, 14),
        watermark=0.0 if v1 else 0.01,
        scheduler_reserve_full_isl=numbers >= (0, 20),
        swap_space_gib=0.0 if v1 else 4.0,
        graphs_charged=numbers >= (0, 21),
        tokens_by_concurrency=numbers >= (0, 21),
    )


def _sglang(version: str, gpu: Gpu) -> EngineDefaults:
    """SGLang's ``server_args``: mem_fraction_static leaves room for graphs and chunks, by GPU size."""
    gib = gpu.memory_bytes / GIB
    chunk, graphs = (2048, 8) if gib < 20 else (2048, 24) if gib < 35 else (4096, 32) if gib < 60 else (8192, 256)
    if gib >= 90:
        chunk, graphs = (8192, 256) if gib < 160 else (16384, 512)
    # Reserved GiB: a constant, 1.5 a thousand chunk tokens, and a share of the largest graph's batch.
    reserved = 512 / 1024 + chunk * 1.5 / 1024 + graphs * 2 / 1024
    return EngineDefaults(
        engine="sglang",
        version=version,
        gpu_memory_utilization=round((gib - reserved) / gib, 3),
        max_num_seqs=4096,
        max_num_batched_tokens=chunk,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        block_size=1,
        async_scheduling=True,
        watermark=0.0,
        scheduler_reserve_full_isl=False,
        swap_space_gib=0.0,
        graphs_charged=False,
        tokens_by_concurrency=False,
    )


def _trtllm(version: str) -> EngineDefaults:
    return EngineDefaults(
        engine="trtllm",
        version=version,
        gpu_memory_utilization=0.9,
        max_num_seqs=2048,
        max_num_batched_tokens=8192,
        enable_prefix_caching=True,
        enable_chunked_prefill=False,
        block_size=32 if parse_version(version) >= (1,) else 64,
        async_scheduling=True,
        watermark=0.0,
        scheduler_reserve_full_isl=True,
        swap_space_gib=0.0,
        graphs_charged=True,
        tokens_by_concurrency=False,
    )


def _lmdeploy(version: str) -> EngineDefaults:
    return EngineDefaults(
        engine="lmdeploy",
        version=version,
        gpu_memory_utilization=0.8,
        max_num_seqs=128,
        max_num_batched_tokens=8192,
        enable_prefix_caching=False,
        enable_chunked_prefill=True,
        block_size=64,
        async_scheduling=False,
        watermark=0.0,
        scheduler_reserve_full_isl=False,
        swap_space_gib=0.0,
        graphs_charged=True,
        tokens_by_concurrency=False,
    )
