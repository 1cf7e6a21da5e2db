"""GPU facts: what drivers report, not what data sheets say."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.catalog import gpu_names, load_gpu
from kvplan.errors import InputError


@pytest.mark.parametrize(
    ("name", "low", "high", "gigabytes", "tflops", "fp8"),
    [  # models_gpus.md: GiB the driver reports, HBM GB/s, dense bf16 and fp8 TFLOP/s
        ("a100-40gb-sxm", 39.25, 39.56, 1555, 312, 0),
        ("a100", 79.1, 79.3, 2039, 312, 0),
        ("h100", 79.1, 79.3, 3350, 989, 1978),
        ("h100-pcie", 79.1, 79.3, 2000, 756, 1513),
        ("h200", 139.75, 139.85, 4800, 989, 1978),
        ("b200", 178.3, 178.4, 8000, 2250, 4500),
        ("l4", 21.9, 22.1, 300, 121, 242),
        ("l40s", 44.4, 44.5, 864, 362, 733),
        ("a10", 21.9, 22.1, 600, 125, 0),
        ("rtx-4090", 23.51, 23.53, 1008, 165, 330),
        ("mi300x", 191.7, 192.0, 5300, 1307, 2615),
    ],
)
def test_the_reference_table(name: str, low: float, high: float, gigabytes: float, tflops: float, fp8: float) -> None:
    gpu = load_gpu(name)
    assert low <= gpu.memory_gib <= high
    assert (gpu.hbm_bytes_per_s / 1e9, gpu.bf16_flops / 1e12, gpu.fp8_flops / 1e12) == (gigabytes, tflops, fp8)


def test_an_h100_is_not_80_gib() -> None:
    """llm-d-planner 205: the card was taken for 80 GiB, the driver gives 79.19."""
    assert load_gpu("h100-sxm").memory_gib == pytest.approx(79.19, abs=0.005)


def test_every_gpu_states_its_source() -> None:
    assert all(load_gpu(name).source for name in gpu_names())


def test_an_unknown_gpu_lists_the_nearest_and_a_mapping_is_taken() -> None:
    """llm-optimizer 15: say which GPUs are known, and take figures for others."""
    with pytest.raises(InputError, match="nearest: h100-sxm"):
        load_gpu("h100-sx")
    custom = load_gpu({"memory_gib": 48, "hbm_bytes_per_s": 1e12, "bf16_flops": 2e14})
    assert (custom.name, custom.memory_bytes) == ("custom", 48 * 2**30)
    assert load_gpu({"base": "h100", "memory_gib": 94}).hbm_bytes_per_s == load_gpu("h100").hbm_bytes_per_s


@pytest.mark.parametrize(
    ("mapping", "field"),
    [
        ({"memory_gib": 48, "bf16_flops": 2e14}, "hbm_bytes_per_s"),
        ({"memory_gib": -1, "hbm_bytes_per_s": 1e12, "bf16_flops": 2e14}, "memory_bytes"),
        ({"memory_gib": "lots", "hbm_bytes_per_s": 1e12, "bf16_flops": 2e14}, "memory_gib"),
        (
            {"memory_gib": 48, "memory_bytes": 1, "hbm_bytes_per_s": 1e12, "bf16_flops": 2e14},
            "memory_gib or memory_bytes",
        ),
        ({"memory_gib": 48, "hbm_bytes_per_s": 1e12, "bf16_flops": 2e14, "flops": 1}, "flops"),
    ],
)
def test_a_bad_mapping_is_refused(mapping: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        load_gpu(mapping)
