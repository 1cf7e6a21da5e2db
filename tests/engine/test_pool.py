"""The pool is what the plan says, and its moves move bytes and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvplan.catalog import load_model
from kvplan.core.replica import Replica, Workload
from kvplan.core.settings import Settings
from kvplan.engine.architecture import architecture, config_of
from kvplan.engine.engine import Engine, EngineOptions
from kvplan.engine.loop import run_steps
from kvplan.engine.pool import CACHE_DTYPES, KvPool, PoolShape, pool_shape
from kvplan.engine.run import deploy
from kvplan.errors import InfeasibleError, InputError
from kvplan.scenario import Scenario
from tests.engine.models import Pair
from tests.engine.runs import workload

CPU = torch.device("cpu")
SETTINGS = Settings(num_gpu_blocks=6, block_size=4, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [("llama-3.1-8b", "auto"), ("qwen3-8b", "fp8"), ("mistral-7b-v0.1", "auto"), ("qwen2.5-7b", "auto")],
)
def test_a_block_has_the_bytes_that_the_memory_plan_counts(model: str, dtype: str) -> None:
    run = Scenario.build({"model": model, "gpu": "h100-sxm", "cache": {"kv_cache_dtype": dtype}})
    deployment, _, pool = deploy(run)
    assert pool.block_bytes == deployment.memory.bytes_per_block
    assert pool.num_blocks == deployment.memory.num_gpu_blocks


def small(pair: Pair, dtype: torch.dtype) -> PoolShape:
    settings = Settings(num_gpu_blocks=6, block_size=4, preemption="swap", host_blocks=3, groups=pair.groups)
    return pool_shape(pair.shape, settings, pair.members, dtype)


@pytest.mark.parametrize("dtype", list(CACHE_DTYPES.values()), ids=list(CACHE_DTYPES))
def test_blocks_survive_copies_and_a_trip_to_the_host(pairs: dict[str, Pair], dtype: torch.dtype) -> None:
    pool = KvPool(small(pairs["hybrid"], dtype), CPU)
    assert pool.tensor.nbytes == 6 * pool.shape.block_bytes
    raw = pool.blocks_of(pool.tensor)
    raw.copy_(torch.randint(0, 256, raw.shape, dtype=torch.uint8))
    before = raw.clone()
    pool.swap_out(np.array([[4, 1], [2, 3]], np.int32))
    pool.copy(np.array([[1, 2], [1, 4], [5, 4]], np.int32))
    assert torch.equal(raw[:, [2, 4]], before[:, [1, 5]]), "the last copy into a block counts"
    pool.swap_in(np.array([[3, 5], [1, 3]], np.int32))
    assert torch.equal(raw[:, [5, 3]], before[:, [2, 4]])
    assert torch.equal(raw[:, [0, 1]], before[:, [0, 1]])


@pytest.mark.parametrize(("block_size", "dtype"), [(2, "float32"), (16, "float32"), (4, "bfloat16"), (8, "fp8")])
def test_the_same_memory_serves_in_another_form(pairs: dict[str, Pair], block_size: int, dtype: str) -> None:
    """`Engine.recut`, as `calibrate` uses it: the answers are those of an engine that was made so."""
    pair, work = pairs["llama"], workload([19, 7, 30], [9, 12, 3])
    settings = replace(SETTINGS, num_gpu_blocks=33, groups=pair.groups)
    options = EngineOptions(attention="torch")
    own = Engine(
        pair.shape, settings, pool_shape(pair.shape, settings, pair.members, torch.float32), options, pair.weights
    )
    recut = own.recut(block_size, CACHE_DTYPES[dtype])
    assert recut.pool.tensor.untyped_storage().data_ptr() == own.pool.tensor.untyped_storage().data_ptr()
    assert recut.pool.tensor.nbytes <= own.pool.tensor.nbytes
    assert recut.settings.num_gpu_blocks == recut.pool.shape.num_blocks == 33 * settings.block_size // block_size
    made = Engine(pair.shape, recut.settings, recut.pool.shape, options, pair.weights)
    assert answers(recut, work) == answers(made, work)


def answers(engine: Engine, work: Workload) -> list[list[int]]:
    executor = engine.executor(work, keep=True)
    run_steps(Replica(engine.settings, work), executor)
    return [executor._histories[request].tokens[0].tolist() for request in range(len(work))]


def test_a_pool_that_no_machine_has(pairs: dict[str, Pair]) -> None:
    shape = replace(small(pairs["llama"], torch.float32), num_blocks=1 << 40)
    with pytest.raises(InfeasibleError, match=r"a KV pool of .* GiB does not fit"):
        KvPool(shape, CPU)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("deepseek-v3", "does not run model type 'deepseek_v3'"),
        ("mixtral-8x7b", "does not run model type 'mixtral'"),
        ("gemma-2-9b", "does not run model type 'gemma2'"),
    ],
)
def test_models_that_it_does_not_run(name: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        architecture(load_model(name), config_of(name))
