"""Reading engines' start-up lines: vLLM from V0 to 0.33, SGLang, TensorRT-LLM, LMDeploy, and ``/metrics`` pages.

Every pattern's named groups are fields of `ServerFacts`. A later line overwrites an earlier one, except where
several ranks each print theirs: then the tightest counts, as it does for the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from kvplan.errors import InputError
from kvplan.memory.server_facts import ServerFacts

_N = r"-?[\d.]+"
_I = r"\d+(?:,\d{3})*"

_VLLM = (
    rf"# \w+ blocks: (?P<num_gpu_blocks>{_I})(?:, # CPU blocks: (?P<num_cpu_blocks>{_I}))?",
    rf"(?:GPU|CPU|XPU|TPU) KV cache size: (?P<kv_tokens>{_I}) tokens",
    rf"Maximum concurrency for (?P<max_model_len>{_I}) tokens per request: (?P<max_concurrency>[\d.]+)x",
    r"Overriding num_gpu_blocks=(?P<blocks_before_override>[1-9]\d*) with "
    r"num_gpu_blocks_override=(?P<num_gpu_blocks_override>\d+)",
    r"num_gpu_blocks is: (?P<num_gpu_blocks>\d+)",
    rf"Available KV cache memory: (?P<available_kv_gib>{_N}) GiB",
    rf"(?:Model loading took|Loading model weights took) (?P<weights_gib>{_N}) ?Gi?B",
    r"Initializing (?:a V1|an?) LLM engine \(v(?P<version>[^)]+)\)",
    r"vLLM API server version (?P<version>\d[\w.]*)",
    r"\bversion (?P<version>\d+\.\d+\.\d+\w*)\s*$",
    rf"total_gpu_memory \((?P<total_gib>{_N})GiB\) x gpu_memory_utilization \((?P<gpu_memory_utilization>[\d.]+)\) = "
    rf"(?P<requested_gib>{_N})GiB",
    rf"model weights take (?P<weights_gib>{_N})GiB; non_torch_memory takes (?P<non_torch_gib>{_N})GiB; PyTorch "
    rf"activation peak memory takes (?P<activation_gib>{_N})GiB; the rest of the memory reserved for KV Cache is "
    rf"(?P<available_kv_gib>{_N})GiB",
    rf"total_gpu_memory=(?P<total_gib>{_N})GiB",
    rf"initial_memory_usage=(?P<initial_usage_gib>{_N})GiB",
    rf"peak_torch_memory=(?P<peak_torch_gib>{_N})GiB",
    rf"non_torch_memory=(?P<non_torch_gib>{_N})GiB,? kv_cache_size=",
    rf"kv_cache_size=(?P<available_kv_gib>{_N})GiB",
    rf"Total non KV cache memory: (?P<non_kv_gib>{_N})GiB; torch peak memory increase: (?P<activation_gib>{_N})GiB; "
    rf"non-torch forward increase memory: (?P<non_torch_gib>{_N})GiB; weights memory: (?P<weights_gib>{_N})GiB",
    rf"worker init memory snapshot: .*total_memory=(?P<total_gib>{_N})GiB",
    rf"worker requested memory: (?P<requested_gib>{_N})GiB",
    rf"Requested memory: (?P<gpu_memory_utilization>[\d.]+) \(util\), (?P<requested_gib>{_N}) GiB",
    rf"Free memory on device \({_N}/(?P<total_gib>{_N}) GiB\) on startup. Desired GPU memory utilization is "
    rf"\((?P<gpu_memory_utilization>[\d.]+), (?P<requested_gib>{_N}) GiB\)",
    rf"Actual usage is (?P<weights_gib>{_N}) GiB for weight, (?P<activation_gib>{_N}) GiB for peak activation, "
    rf"(?P<non_torch_gib>{_N}) GiB for non-torch memory, and (?P<cuda_graphs_gib>{_N}) GiB for CUDAGraph memory",
    rf"Estimated CUDA graph memory: (?P<cuda_graphs_estimated_gib>{_N}) GiB",
    rf"CUDA graph pool memory: (?P<cuda_graphs_gib>{_N}) GiB \(actual\), (?P<cuda_graphs_estimated_gib>{_N}) GiB",
    rf"Graph capturing finished in {_N} secs?, took (?P<cuda_graphs_gib>{_N}) GiB",
    rf"max seq len \((?P<max_model_len>{_I})\),? \(?(?P<needed_kv_gib>{_N}) GiB KV cache is needed, which is larger "
    rf"than the available KV cache memory \((?P<available_kv_gib>{_N}) GiB\)",
    rf"estimated maximum model length is (?P<estimated_max_len>{_I})",
    rf"max seq len \((?P<max_model_len>{_I})\) is larger than the maximum number of tokens that can be stored in KV "
    rf"cache \((?P<kv_tokens>{_I})\)",
    rf"reserved (?P<available_kv_gib>{_N}) GiB memory for KV Cache as specified",
    r"Setting attention block size to (?P<block_size>\d+) tokens",
    rf"Padding mamba page size by (?P<mamba_padding_percent>{_N})%",
    r"Chunked prefill is enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>\d+)",
    r"Defaulting max_num_seqs to (?P<max_num_seqs>\d+) for",
    r"Running: (?P<running>\d+) reqs, .*?Waiting: (?P<waiting>\d+) reqs,.*?"
    r"GPU KV cache usage: (?P<kv_usage_percent>[\d.]+)%",
)
_SGLANG = (
    rf"max_total_num_tokens=(?P<kv_tokens>{_I})",
    r"\bcontext_len=(?P<max_model_len>\d+)",
    rf"KV Cache is allocated\..*#tokens: (?P<kv_tokens>{_I}), K size: (?P<k_gib>{_N}) GB, V size: (?P<v_gib>{_N}) GB",
    rf"KV Cache is allocated\..*#tokens: (?P<kv_tokens>{_I}), KV size: (?P<available_kv_gib>{_N}) GB",
    rf"Load weight end\..*mem usage=(?P<weights_gib>{_N}) GB",
    rf"Load weight begin\. avail mem=(?P<free_gib>{_N}) GB",
    r"model_path='(?P<model>[^']+)'",
    r"mem_fraction_static=(?P<gpu_memory_utilization>0?\.\d+)",
    r"\btp_size=(?P<tensor_parallel_size>\d+)",
    r"\bpp_size=(?P<pipeline_parallel_size>\d+)",
    rf"Capture (?:cuda|piecewise).*graph end\..*mem usage=(?P<cuda_graphs_gib>{_N}) GB",
)
_TRTLLM = (
    rf"Allocated (?P<available_kv_gib>{_N}) GiB for max tokens in paged KV cache \((?P<kv_tokens>{_I})\)",
    rf"Max tokens in paged KV cache: (?P<kv_tokens>{_I})\.(?: Allocating (?P<kv_allocated_bytes>\d+) bytes)?",
    r"Number of tokens per block: (?P<block_size>\d+)",
    r"Number of blocks in KV cache primary pool: (?P<num_gpu_blocks>\d+)",
    rf"max_num_tokens = (?P<kv_tokens>{_I}).*primary_pool",
)
_LMDEPLOY = (rf"\[BlockManager\] .*max_block_count = (?P<num_gpu_blocks>{_I})",)
_FLAGS = (
    r"[\s({,']model(?:_tag)?'?[=:] ?'(?P<model>[^']+)'",
    r"[\s(,']dtype'?[=:] ?'?(?:torch\.)?(?P<dtype>\w+)",
    r"max_seq_len=(?P<max_model_len>\d+)",
    r"'?max_model_len'?[=:] ?(?P<max_model_len>\d+)",
    r"tensor_parallel_size'?[=:] ?(?P<tensor_parallel_size>\d+)",
    r"pipeline_parallel_size'?[=:] ?(?P<pipeline_parallel_size>\d+)",
    r"\bquantization'?[=:] ?'?(?P<quantization>[\w-]+)",
    r"kv_cache_dtype'?[=:] ?'?(?P<kv_cache_dtype>[\w.]+)",
    r"'?gpu_memory_utilization'?[=:] ?(?P<gpu_memory_utilization>[\d.]+)",
    r"'block_size': (?P<block_size>\d+)",
    r"'?max_num_seqs'?[=:] ?(?P<max_num_seqs>\d+)",
    r"'?max_num_batched_tokens'?[=:] ?(?P<max_num_batched_tokens>\d+)",
    r"enforce_eager=(?P<enforce_eager>True|False)",
)
_TABLES = tuple(
    (engine, tuple(re.compile(pattern) for pattern in patterns))
    for engine, patterns in (
        ("vllm", _VLLM),
        ("sglang", _SGLANG),
        ("trtllm", _TRTLLM),
        ("lmdeploy", _LMDEPLOY),
    )
)
_FLAG_PATTERNS = tuple(re.compile(pattern) for pattern in _FLAGS)
_FLAG_LINES = (
    "LLM engine (v",
    "non-default args",
    "Initializing a",
    "server_args=",
    "vllm serve",
    "EngineArgs(",
)
_METRIC = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_STAMP = re.compile(r"\b(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_START_LASTS_S = 6 * 3600.0
_PER_RANK = {
    "available_kv_gib": min,
    "weights_gib": max,
    "activation_gib": max,
    "non_torch_gib": max,
    "kv_tokens": min,
    "num_gpu_blocks": min,
    "max_concurrency": min,
}
_ONE_A_START = {
    "version",
    "model",
    "max_model_len",
    "kv_tokens",
    "num_gpu_blocks",
    "max_concurrency",
    "weights_gib",
    "available_kv_gib",
    "needed_kv_gib",
}
_Said = tuple[str | None, str, Any]
_INTEGERS = {
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_speculative_tokens",
    "num_gpu_blocks_override",
    "kv_allocated_bytes",
    "num_gpu_blocks",
    "num_cpu_blocks",
    "blocks_before_override",
    "kv_tokens",
    "estimated_max_len",
    "running",
    "waiting",
}
_TEXTS = {"version", "model", "dtype", "quantization", "kv_cache_dtype"}


def read_log(lines: Iterable[str], *, source: str = "") -> ServerFacts:
    """The facts in one server's start-up log or ``/metrics`` page; of several servers', the last.

    Raises:
        InputError: not one line of it is understood.
    """
    return read_servers(lines, source=source)[-1]


def read_servers(lines: Iterable[str], *, source: str = "") -> tuple[ServerFacts, ...]:
    """The same for a file that may hold several starts: one record each, in order.

    A new start is one whose figures contradict the earlier ones, or whose lines are hours apart.

    Raises:
        InputError: not one line of it is understood.
    """
    servers: list[_Server] = []
    for number, line in enumerate(lines, start=1):
        said = list(_read_line(line))
        if not said:
            continue
        if not servers or servers[-1].ended_before(line, said):
            servers.append(_Server())
        servers[-1].take(number, line, said)
    if not servers:
        raise InputError(
            "no start-up line of vLLM, SGLang, TensorRT-LLM or LMDeploy and no metric of theirs is in it",
            source=source or None,
            hint='looked for lines such as "GPU KV cache size: 476,016 tokens" or vllm:cache_config_info',
        )
    return tuple(server.facts() for server in servers)


class _Server:
    """The facts of one start, gathered line by line."""

    def __init__(self) -> None:
        self._engine: str | None = None
        self._found: dict[str, Any] = {}
        self._places: dict[str, int] = {}
        self._time: float | None = None

    def ended_before(self, line: str, said: list[_Said]) -> bool:
        """Whether ``line`` belongs to another start."""
        if not any(name in _ONE_A_START for _, name, _ in said):
            return False
        now = _time_of(line)
        if now is not None and self._time is not None and abs(now - self._time) > _START_LASTS_S:
            return True
        if any(engine is not None and self._engine not in (None, engine) for engine, _, _ in said):
            return True
        changed = any(name in _ONE_A_START and self._found.get(name, value) != value for _, name, value in said)
        return changed and not _is_worker_line(line)

    def take(self, number: int, line: str, said: list[_Said]) -> None:
        self._time = _time_of(line) or self._time
        for engine, name, value in said:
            self._engine = engine or self._engine
            if name in self._found and name in _PER_RANK and _is_worker_line(line):
                value = _PER_RANK[name](self._found[name], value)
            self._found[name] = value
            self._places[name] = number

    def facts(self) -> ServerFacts:
        found = {name: value for name, value in self._found.items() if name != "free_gib"}
        if found.get("quantization") in ("None", "none"):
            found.pop("quantization")
        if "num_gpu_blocks_override" in found:
            found["num_gpu_blocks"] = found["num_gpu_blocks_override"]
        return ServerFacts(engine=self._engine, lines=tuple(sorted(self._places.items())), **found)


def _time_of(line: str) -> float | None:
    """Seconds into a year of 31-day months, by the ``MM-DD HH:MM:SS`` of a log line; None where it has none."""
    match = _STAMP.search(line)
    if match is None:
        return None
    month, day, hour, minute, second = (int(part) for part in match.groups())
    return ((month * 31 + day) * 24 + hour) * 3600.0 + minute * 60 + second


def _read_line(line: str) -> Iterator[_Said]:
    if line.startswith("#") and " blocks:" not in line:
        return
    if metric := _METRIC.match(line):
        name = metric["name"]
        if name.startswith(("vllm:", "sglang:", "sglang_")):
            yield from _read_metric(name, metric["labels"] or "", metric["value"])
            return
    for engine, patterns in _TABLES:
        for pattern in patterns:
            if match := pattern.search(line):
                for name, text in match.groupdict().items():
                    if text is not None:
                        yield engine, name, _value(name, text)
    if any(mark in line for mark in _FLAG_LINES):
        for pattern in _FLAG_PATTERNS:
            if match := pattern.search(line):
                for name, text in match.groupdict().items():
                    if text not in (None, "None"):
                        yield None, name, _value(name, text)


def _read_metric(name: str, labels: str, value: str) -> Iterator[_Said]:
    if name == "vllm:cache_config_info":
        renamed = {"cache_dtype": "kv_cache_dtype", "kv_cache_size_tokens": "kv_tokens"}
        wanted = {
            "block_size",
            "gpu_memory_utilization",
            "num_gpu_blocks",
            "num_gpu_blocks_override",
            "num_cpu_blocks",
        }
        for label, text in _LABEL.findall(labels):
            field = renamed.get(label, label)
            if text not in ("None", "") and (label in renamed or label in wanted):
                yield "vllm", field, _value(field, text)
            elif label == "kv_cache_max_concurrency" and text not in ("None", ""):
                yield "vllm", "max_concurrency", float(text)
        return
    gauges = {
        "vllm:num_requests_running": ("vllm", "running", 1),
        "vllm:num_requests_waiting": ("vllm", "waiting", 1),
        "vllm:kv_cache_usage_perc": ("vllm", "kv_usage_percent", 100),
        "vllm:gpu_cache_usage_perc": ("vllm", "kv_usage_percent", 100),
        "vllm:kv_cache_max_concurrency": ("vllm", "max_concurrency", 1),
        "sglang:max_total_num_tokens": ("sglang", "kv_tokens", 1),
        "sglang:num_running_reqs": ("sglang", "running", 1),
        "sglang:num_queue_reqs": ("sglang", "waiting", 1),
        "sglang:token_usage": ("sglang", "kv_usage_percent", 100),
    }
    if name in gauges:
        engine, field, factor = gauges[name]
        number = float(value) * factor
        yield engine, field, int(number) if field in _INTEGERS else number


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        return text
    if name == "enforce_eager":
        return text == "True"
    number = text.replace(",", "").rstrip(".")
    return int(number) if name in _INTEGERS else float(number)


def _is_worker_line(line: str) -> bool:
    """Whether one of several ranks or replicas speaks."""
    return re.search(r"Worker|\bTP\d|_DP[1-9]|\brank\b|RayWorker", line) is not None
