"""``kvplan memory``."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.catalog import Gpu, ModelConfig, load_gpu, load_model
from kvplan.catalog.dtypes import canonical_dtype
from kvplan.catalog.quantize import with_quantization
from kvplan.errors import InputError
from kvplan.memory import MemoryOverrides, advise, just_enough, load_overrides, plan_memory, require_feasible
from kvplan.memory.checkpoint import checkpoint_bytes
from kvplan.memory.summary import plan_summary
from kvplan.terminal.console import standard_output
from kvplan.terminal.memory import print_advice, print_just_enough, print_plan

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "k": 10**3, "m": 10**6, "g": 10**9}


def _option(*flags: str, help: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


def memory(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.")] = None,
    gpu: Annotated[str | None, typer.Argument(metavar="[GPU]", help="The same as --gpu.")] = None,
    model_option: Annotated[
        str | None,
        _option("--model", metavar="NAME|PATH|{...}", help="catalogue name, config.json, or its keys", panel="What"),
    ] = None,
    gpu_option: Annotated[
        str | None, _option("--gpu", metavar="NAME|{...}", help="catalogue name, or the GPU's facts", panel="What")
    ] = None,
    engine_name: Annotated[
        str, _option("--engine-name", "--engine", help="vllm, sglang, trtllm, lmdeploy [vllm]", panel="What")
    ] = "vllm",
    engine_version: Annotated[
        str, _option("--engine-version", help="its release: defaults and formula follow it [0.33]", panel="What")
    ] = "0.33",
    tensor_parallel_size: Annotated[
        int, _option("--tensor-parallel-size", "-tp", help="GPUs that share each layer [1]", panel="Flags")
    ] = 1,
    pipeline_parallel_size: Annotated[
        int, _option("--pipeline-parallel-size", "-pp", help="stages of layers [1]", panel="Flags")
    ] = 1,
    block_size: Annotated[int | None, _option("--block-size", help="tokens in a block", panel="Flags")] = None,
    kv_cache_dtype: Annotated[
        str, _option("--kv-cache-dtype", help="auto, fp8, int8, nvfp4, ... [auto]", panel="Flags")
    ] = "auto",
    gpu_memory_utilization: Annotated[
        float | None,
        _option("--gpu-memory-utilization", "--mem-fraction-static", help="the engine's own fraction", panel="Flags"),
    ] = None,
    max_model_len: Annotated[
        str | None, _option("--max-model-len", metavar="TOKENS", help="longest sequence (32K = 32768)", panel="Flags")
    ] = None,
    max_num_seqs: Annotated[
        int | None, _option("--max-num-seqs", help="most sequences that run at once", panel="Flags")
    ] = None,
    max_num_batched_tokens: Annotated[
        str | None,
        _option("--max-num-batched-tokens", metavar="TOKENS", help="most tokens of a step", panel="Flags"),
    ] = None,
    num_gpu_blocks_override: Annotated[
        int | None, _option("--num-gpu-blocks-override", help="blocks, the null block counted", panel="Flags")
    ] = None,
    kv_cache_memory_bytes: Annotated[
        str | None,
        _option("--kv-cache-memory-bytes", metavar="BYTES", help="the pool itself (8G = 8 GiB)", panel="Flags"),
    ] = None,
    dtype: Annotated[str | None, _option("--dtype", help="load the model in this type", panel="Flags")] = None,
    quantization: Annotated[
        str | None, _option("--quantization", help="fp8, int8, awq, gptq, nvfp4, none", panel="Flags")
    ] = None,
    enforce_eager: Annotated[
        bool, _option("--enforce-eager/--no-enforce-eager", help="capture no CUDA graphs", panel="Flags")
    ] = False,
    enable_chunked_prefill: Annotated[
        bool | None,
        _option("--enable-chunked-prefill/--no-enable-chunked-prefill", help="default: the version's", panel="Flags"),
    ] = None,
    enable_prefix_caching: Annotated[
        bool | None,
        _option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="costs state-space layers a page a request",
            panel="Flags",
        ),
    ] = None,
    async_scheduling: Annotated[
        bool,
        _option("--async-scheduling/--no-async-scheduling", help="window layers keep two batches", panel="Flags"),
    ] = False,
    disable_hybrid_kv_cache_manager: Annotated[
        bool, _option("--disable-hybrid-kv-cache-manager", help="window layers keep full length", panel="Flags")
    ] = False,
    num_speculative_tokens: Annotated[
        int, _option("--num-speculative-tokens", help="widens state-space layers' state [0]", panel="Flags")
    ] = 0,
    pp_layer_partition: Annotated[
        str | None, _option("--pp-layer-partition", metavar="N,N,...", help="layers a stage", panel="Flags")
    ] = None,
    total_gib: Annotated[float | None, _option("--total-gib", help="the GPU's memory", panel="Known terms")] = None,
    weights_gib: Annotated[float | None, _option("--weights-gib", help="of one GPU", panel="Known terms")] = None,
    activation_gib: Annotated[
        float | None, _option("--activation-gib", help="peak above the weights", panel="Known terms")
    ] = None,
    non_torch_gib: Annotated[
        float | None, _option("--non-torch-gib", help="NCCL, workspaces", panel="Known terms")
    ] = None,
    cuda_graphs_gib: Annotated[
        float | None, _option("--cuda-graphs-gib", help="captured graphs", panel="Known terms")
    ] = None,
    overrides: Annotated[
        Path | None,
        _option("--overrides", metavar="FILE", help="what `kvplan reconcile --save` wrote", panel="Known terms"),
    ] = None,
    safetensors: Annotated[
        Path | None,
        _option("--safetensors", metavar="PATH", help="a checkpoint's files: exact weights", panel="Known terms"),
    ] = None,
    for_requests: Annotated[
        int | None,
        _option("--for-requests", metavar="N", help="the pool that just holds N requests ...", panel="Just enough"),
    ] = None,
    at_length: Annotated[
        str | None,
        _option("--at-length", metavar="TOKENS", help="... of this length [max_model_len]", panel="Just enough"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """How much of a GPU the model takes, and how many blocks and requests the rest holds.

    Exit code 3 where the server would not start: with the breakdown, and the nearest settings that do.
    """
    shape = _model(model_option or model, dtype, quantization)
    card = _gpu(gpu_option or gpu)
    stated = MemoryOverrides.from_gib(
        total=total_gib,
        weights=weights_gib,
        non_torch=non_torch_gib,
        activation=activation_gib,
        cuda_graphs=cuda_graphs_gib,
    )
    if overrides is not None:
        stated = stated.over(load_overrides(overrides))
    if safetensors is not None and stated.weights_bytes is None:
        held = max(
            checkpoint_bytes(safetensors, shape, tensor_parallel_size, pipeline_parallel_size, rank)
            for rank in range(pipeline_parallel_size)
        )
        stated = stated.over(MemoryOverrides(weights_bytes=held, origin=f"exact: {safetensors}"))
    plan = plan_memory(
        shape,
        card,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        block_size=block_size,
        kv_cache_dtype=kv_cache_dtype,
        gpu_memory_utilization=gpu_memory_utilization,
        max_model_len=_count(max_model_len, "--max-model-len"),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=_count(max_num_batched_tokens, "--max-num-batched-tokens"),
        num_gpu_blocks_override=num_gpu_blocks_override,
        kv_cache_memory_bytes=_count(kv_cache_memory_bytes, "--kv-cache-memory-bytes"),
        engine=engine_name,
        version=engine_version,
        overrides=stated,
        async_scheduling=async_scheduling,
        enable_chunked_prefill=enable_chunked_prefill,
        enable_prefix_caching=enable_prefix_caching,
        num_speculative_tokens=num_speculative_tokens,
        enforce_eager=enforce_eager,
        disable_hybrid_kv_cache_manager=disable_hybrid_kv_cache_manager,
        pp_layer_partition=_partition(pp_layer_partition),
    )
    if at_length is not None and for_requests is None:
        raise InputError("says the length of how many requests?", field="--at-length", hint="add --for-requests N")
    enough = None
    if for_requests is not None:
        length = _count(at_length, "--at-length") or plan.max_model_len
        enough = just_enough(plan, for_requests, length)
    if as_json:
        summary = plan_summary(plan)
        if enough is not None:
            summary["just_enough"] = vars(enough)
        typer.echo(json.dumps(summary, indent=2))
    else:
        console = standard_output()
        print_plan(console, plan)
        if enough is not None:
            print_just_enough(console, enough)
        if not plan.feasible:
            print_advice(console, plan, advise(plan))
    require_feasible(plan)


def _model(ref: str | None, dtype: str | None, quantization: str | None) -> ModelConfig:
    if ref is None:
        raise InputError("which model?", field="--model", hint="a name of `kvplan models`, or a config.json")
    model = load_model(_mapping_or_name(ref, "--model"))
    if quantization is not None:
        model = with_quantization(model, quantization)
    return model if dtype is None else replace(model, dtype=canonical_dtype(dtype, "--dtype"))


def _gpu(ref: str | None) -> Gpu:
    if ref is None:
        raise InputError("which GPU?", field="--gpu", hint="a name of `kvplan gpus`, or a mapping of its facts")
    return load_gpu(_mapping_or_name(ref, "--gpu"))


def _mapping_or_name(ref: str, field: str) -> Any:
    if not ref.lstrip().startswith("{"):
        return ref
    import yaml

    try:
        return yaml.safe_load(ref)
    except yaml.YAMLError:
        raise InputError("not a mapping", field=field, value=ref) from None


def _count(text: str | None, field: str) -> int | None:
    """``32K``, ``8G`` as powers of 1024 (a small letter: of 1000), or a plain number."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGTkmg]?)(?:i?B)?\s*", text)
    if match is None:
        raise InputError("not a number", field=field, value=text, hint="for example 8192, 32K or 8G")
    return int(float(match[1]) * _UNITS[match[2]])


def _partition(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError("layers a stage, separated by commas", field="--pp-layer-partition", value=text) from None
