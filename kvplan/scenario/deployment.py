"""The sections of a scenario that say how the model is served.

None means the engine's default, which `kvplan.resolve` fills in. Names are vLLM's where vLLM has one.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from kvplan.scenario.section import Count, Fraction, HumanCount, Section

KvCacheDtype = Literal[
    "auto",
    "float32",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "int8",
    "int4",
    "nvfp4",
    "fp8_per_token_head",
    "int8_per_token_head",
    "int4_per_token_head",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "q8_0",
    "q4_0",
]
"""What `kvplan.memory.kv_dtype` knows the bytes of."""


class Parallel(Section):
    """Over how many GPUs one deployment is spread."""

    tensor_parallel_size: Count = Field(1, description="GPUs that share each layer")
    pipeline_parallel_size: Count = Field(1, description="stages that share the layers out")
    data_parallel_size: Count = Field(1, description="replicas with an own KV cache each")


class Cache(Section):
    """The KV cache of one replica."""

    layout: Literal["paged", "contiguous"] = Field(
        "paged", description="blocks through a block table, or one extent a sequence"
    )
    block_size: Count | None = Field(None, description="tokens in a block")
    kv_cache_dtype: KvCacheDtype = Field("auto", description="type of a stored K or V; auto: the model's")
    enable_prefix_caching: bool | None = Field(None, description="reuse the blocks of equal prefixes")
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="fraction of the GPU's memory that the engine takes, weights included",
    )
    num_gpu_blocks_override: HumanCount | None = Field(
        None, ge=2, description="blocks in the pool, the null block counted, whatever the memory formula says"
    )
    kv_cache_memory_bytes: HumanCount | None = Field(
        None, description="bytes of the KV pool per GPU, whatever the memory formula says (8G = 8 GiB)"
    )
    swap_space: float = Field(0.0, ge=0.0, description="GiB of host memory per GPU for swapped blocks")
    reservation: Literal["max", "pow2", "oracle", "grow"] = Field(
        "max",
        description="layout contiguous: what a sequence reserves: max_model_len, prompt + the next power of "
        "two of the output, prompt + output, or doubling with a copy",
    )
    placement: Literal["buddy", "first-fit", "best-fit"] = Field(
        "buddy", description="layout contiguous: where an extent goes"
    )


class Scheduler(Section):
    """The rules of one replica's scheduler, vLLM V1's."""

    max_model_len: HumanCount | None = Field(None, description="longest prompt + output, tokens (32K = 32768)")
    max_num_seqs: Count | None = Field(None, description="most sequences that run at once")
    max_num_batched_tokens: HumanCount | None = Field(None, description="most tokens computed in a step")
    enable_chunked_prefill: bool | None = Field(None, description="a prompt may be computed over several steps")
    scheduling_policy: Literal["fcfs", "priority"] = Field("fcfs", description="who runs first and who is preempted")
    long_prefill_token_threshold: int = Field(
        0, ge=0, description="most tokens of one prompt in a step while others exist; 0: no such limit"
    )
    watermark: float = Field(
        0.0, ge=0.0, lt=1.0, description="fraction of the blocks kept free at admission while anything runs"
    )
    scheduler_reserve_full_isl: bool = Field(
        True, description="admit a request only where its whole known sequence fits, not just its first chunk"
    )
    async_scheduling: bool | None = Field(None, description="plan the next step while one is in flight")
    batching: Literal["continuous", "static"] = Field(
        "continuous", description="join and leave at every step, or wait for the longest of a batch"
    )
    preemption: Literal["recompute", "swap"] = Field(
        "recompute", description="what happens to the blocks of a preempted sequence"
    )
    num_speculative_tokens: int = Field(0, ge=0, description="tokens drafted ahead in a step")
    acceptance_rate: Fraction = Field(0.0, description="probability that a drafted token is accepted")
    admission: Literal["vllm", "guaranteed_no_evict", "max_utilization"] = Field(
        "vllm", description="when a waiting request may start; the last two are TensorRT-LLM's"
    )


class Timing(Section):
    """What tells how long a step lasts: exactly one of the three.

    In a scenario ``timing: roofline`` is short for ``timing: {roofline: {}}``.
    """

    roofline: dict[str, float] | None = Field(
        None, description="from model shape and GPU facts; coefficients given here replace the default ones"
    )
    profile: str | None = Field(None, description="a profile file, measured or imported")
    coefficients: dict[str, float] | None = Field(
        None, description="with profile: coefficients that replace the profile's default ones"
    )
    constant: float | None = Field(None, gt=0.0, description="seconds, for every step")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if value == "roofline":
            return {"roofline": {}}
        if not isinstance(value, dict | Timing):
            raise ValueError("must be roofline, {profile: FILE} or {constant: SECONDS}")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Timing:
        if sum(kind is not None for kind in (self.roofline, self.profile, self.constant)) != 1:
            raise ValueError("takes exactly one of roofline, profile and constant")
        if self.coefficients is not None and self.profile is None:
            raise ValueError("coefficients go with a profile; the roofline's stand under roofline")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"const": "roofline"}, handler.resolve_ref_schema(handler(core))]}

    @model_serializer(mode="plain")
    def _as_written(self) -> str | dict[str, Any]:
        if self.profile is not None:
            more = {"coefficients": self.coefficients} if self.coefficients else {}
            return {"profile": self.profile, **more}
        if self.constant is not None:
            return {"constant": self.constant}
        return {"roofline": self.roofline} if self.roofline else "roofline"


class Engine(Section):
    """Whose defaults and whose memory formula."""

    name: Literal["vllm", "sglang", "trtllm", "lmdeploy"] = Field("vllm", description="serving engine")
    version: str = Field("0.33", description="its release, quoted in YAML: 0.10 is not 0.1")
    memory_overrides: str | None = Field(
        None, description="a file of measured memory terms, as `kvplan reconcile --save` writes it"
    )


class Bound(Section):
    """Upper bounds, in the unit of the metric they stand under."""

    mean: float | None = Field(None, gt=0.0)
    p50: float | None = Field(None, gt=0.0)
    p90: float | None = Field(None, gt=0.0)
    p95: float | None = Field(None, gt=0.0)
    p99: float | None = Field(None, gt=0.0)
    max: float | None = Field(None, gt=0.0)


class Slo(Section):
    """What the service promises; goodput counts the requests that keep it. Seconds."""

    queue_s: Bound | None = Field(None, description="arrival to first scheduled")
    ttft_s: Bound | None = Field(None, description="arrival to first token")
    itl_s: Bound | None = Field(None, description="between two tokens")
    tpot_s: Bound | None = Field(None, description="(last - first token) / (outputs - 1)")
    e2e_s: Bound | None = Field(None, description="arrival to last token")
    normalized_s_per_token: Bound | None = Field(None, description="e2e_s / outputs")
