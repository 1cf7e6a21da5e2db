"""Deployments whose bottleneck is known by construction.

Steps of constant length make memory and limits the only things that can matter: what then waits, waits for
the one constraint that the case makes tight. Compute and bandwidth need the roofline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STEP_S = 0.01


def requests(count: int, prompt: int, output: int, *, every: float = 0.0, prefix: int = 0) -> list[dict[str, Any]]:
    """``count`` equal requests, one each ``every`` seconds, the first ``prefix`` tokens the same in all."""
    shared = {"prefix": {"id": "system", "tokens": prefix}} if prefix else {}
    return [{"arrival": number * every, "prompt": prompt, "output": output, **shared} for number in range(count)]


def deployment(
    traffic: list[dict[str, Any]],
    *,
    pool_tokens: int,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    timing: Any = None,
    slo: dict[str, Any] | None = None,
    **cache: Any,
) -> dict[str, Any]:
    block_size = cache.get("block_size", 16)
    return {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "cache": {
            "block_size": 16,
            "enable_prefix_caching": False,
            "num_gpu_blocks_override": pool_tokens // block_size + 1,
            **cache,
        },
        "scheduler": {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "max_model_len": min(4096, pool_tokens // 1024 * 1024),
            "async_scheduling": False,
        },
        "timing": timing or {"constant": STEP_S},
        "slo": slo or {},
        "requests": traffic,
    }


@dataclass(frozen=True)
class Case:
    name: str
    why: str
    scenario: dict[str, Any]
    binds: tuple[str, ...]


CASES = (
    Case(
        "extents of max_model_len",
        "The pool holds 8 extents of 4096; the requests need 300 tokens each, so 13 times as many would fit.",
        deployment(
            requests(96, 200, 100),
            pool_tokens=8 * 4096,
            layout="contiguous",
            reservation="max",
            placement="first-fit",
        ),
        ("allocation",),
    ),
    Case(
        "blocks of 256 for sequences of 40",
        "Each sequence holds a block of 256 tokens and fills 40: 16-token blocks hold five times as many.",
        deployment(requests(128, 20, 20), pool_tokens=16 * 256, block_size=256),
        ("allocation",),
    ),
    Case(
        "one system prompt before every question",
        "1024 of each request's 1056 prompt tokens are the same and are kept and computed for each of them.",
        deployment(requests(96, 1056, 60, prefix=1024), pool_tokens=8 * 1152),
        ("prefixes",),
    ),
    Case(
        "twice too small a pool",
        "Ten a second of 1.1 s each: 11 must run at once, 8 fit, and at half the bytes a token 16 do.",
        deployment(requests(160, 400, 112, every=0.1), pool_tokens=8 * 512 + 32),
        ("bytes",),
    ),
    Case(
        "far too small a pool",
        "2 of 64 fit: halving the bytes admits 4, and 64 would find work.",
        deployment(requests(64, 400, 112), pool_tokens=2 * 512 + 32),
        ("memory",),
    ),
    Case(
        "four at a time in an empty pool",
        "max_num_seqs is 4 and the pool would hold hundreds.",
        deployment(requests(64, 64, 64), pool_tokens=1 << 17, max_num_seqs=4),
        ("sequences",),
    ),
    Case(
        "long prompts in small bites",
        "A prompt of 2048 takes 8 steps of 256 tokens; one of 2048 tokens would do.",
        deployment(requests(48, 2048, 2), pool_tokens=1 << 17, max_num_batched_tokens=256),
        ("tokens",),
    ),
    Case(
        "more prompt tokens than the GPU can multiply",
        "Prompts of 3000 tokens, one token out, 60 a second: prefill is arithmetic, and this is too much.",
        deployment(
            requests(300, 3000, 1, every=1 / 60),
            pool_tokens=1 << 18,
            max_num_batched_tokens=32768,
            timing="roofline",
        ),
        ("compute",),
    ),
    Case(
        "one stream that must be faster than the weights can be read",
        "A lone decode reads 16 GB a token: at 3.35 TB/s that is 4.8 ms, and 4 are asked for.",
        deployment(
            requests(4, 16, 200, every=3.0),
            pool_tokens=1 << 16,
            timing="roofline",
            slo={"tpot_s": {"p95": 0.004}},
        ),
        ("bandwidth",),
    ),
    Case(
        "a constant step that is too long for the promise",
        "No limit is near, every step takes 10 ms and 5 are promised.",
        deployment(requests(8, 16, 50, every=1.0), pool_tokens=1 << 16, slo={"tpot_s": {"p95": 0.005}}),
        ("step",),
    ),
    Case(
        "room to spare",
        "One request a second in a pool for two hundred.",
        deployment(requests(40, 200, 50, every=1.0), pool_tokens=1 << 16),
        (),
    ),
    Case(
        "a limit as tight as the pool",
        "11 must run at once; 8 may and 8 fit: neither alone helps, both together do.",
        deployment(requests(160, 400, 112, every=0.1), pool_tokens=8 * 512 + 32, max_num_seqs=8),
        ("sequences", "bytes"),
    ),
    Case(
        "a pool behind the limit",
        "4 may run and 6 fit: with more allowed, the bytes of a token are next.",
        deployment(requests(64, 400, 112), pool_tokens=6 * 512 + 32, max_num_seqs=4),
        ("sequences", "bytes"),
    ),
    Case(
        "extents, and a system prompt in each of them",
        "Paging fits 3 times as many, and then each still holds its own copy of the same 1024 tokens.",
        deployment(
            requests(96, 1056, 60, prefix=1024),
            pool_tokens=8 * 4096,
            layout="contiguous",
            reservation="max",
            placement="first-fit",
        ),
        ("allocation", "prefixes"),
    ),
)
