"""A model of a few thousand weights, settings to measure it with, and times that are known."""

from __future__ import annotations

from typing import Any

from kvplan.calibration.plan import Point

MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 97,
    "max_position_embeddings": 512, "torch_dtype": "float32",
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "model": MODEL,
    "cache.block_size": 4,
    "cache.num_gpu_blocks_override": 65,
    "scheduler.max_model_len": 64,
    "scheduler.max_num_seqs": 4,
    "scheduler.max_num_batched_tokens": 32,
}
LAYERS = 2


class KnownTimes:
    """A sampler whose times are formulas: seconds of all layers.

    A mixed step takes nine tenths of its two parts. The n-th measurement raises ``error`` where it is given.
    """

    def __init__(self, fails_at: int | None = None, error: BaseException | None = None) -> None:
        self.seen: list[Point] = []
        self._fails_at = fails_at
        self._error = error

    def sample(self, point: Point) -> dict[str, float]:
        if self._error is not None and len(self.seen) == self._fails_at:
            raise self._error
        self.seen.append(point)
        if point.kind == "decode":
            return {"attention": decode(*point.at), "linear": linear(point.at[0])}
        if point.kind == "prefill":
            return {"attention": prefill(*point.at), "linear": linear(point.at[0])}
        if point.kind == "traffic":
            return {"seconds": 1.0}
        if point.kind == "linear":
            return {"attention": 1.0, "linear": linear(point.at[0])}
        if point.kind == "mixed":
            return {"attention": 0.9 * (prefill(*point.at[:2]) + decode(*point.at[2:])), "linear": 0.0}
        if point.kind == "skew":
            rows, long_rows, short, long = point.at
            mean = (long_rows * long + (rows - long_rows) * short) // rows
            return {"at_mean": decode(rows, mean), "at_longest": decode(rows, long), "seconds": decode(rows, long)}
        if point.kind == "host":
            rows, prompt = point.at
            return {"decode": linear(rows) + head(rows) + decode(rows, prompt + 4) + 2e-3 + 1e-4 * rows}
        if point.kind == "head":
            return {"seconds": head(point.at[0])}
        return {"seconds": 1e-6 * point.at[0]}


def decode(rows: int, context: int) -> float:
    return 1e-4 + 1e-6 * rows * context


def prefill(tokens: int, prior: int) -> float:
    return 2e-4 + 1e-7 * tokens * (prior + tokens / 2)


def linear(tokens: int) -> float:
    return 1e-3 + 1e-5 * tokens


def head(rows: int) -> float:
    return 1e-4 + 2e-6 * rows
