"""The kernels under the engine, in Triton's interpreter: few steps, since each takes long there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvplan.core.replica import Replica
from kvplan.core.settings import Settings
from kvplan.engine.attention_torch import TorchAttention
from kvplan.engine.batch import step_batch
from kvplan.engine.decoder import Decoder
from kvplan.engine.pool import KvPool, pool_shape
from tests.engine.models import Pair
from tests.engine.runs import run, workload, worst_error

triton_backend = pytest.importorskip("kvplan.engine.attention_triton", reason="the triton backend needs triton")

SETTINGS = Settings(
    block_size=16, num_gpu_blocks=40, max_model_len=256, max_num_seqs=8, max_num_batched_tokens=40, skip=False
)
WORK = workload([30, 41, 7], [3, 2, 3], sequences=np.array([2, 1, 1], np.int32))


@pytest.fixture(autouse=True)
def interpreter() -> None:
    if not triton_backend.interpreted():
        pytest.skip("triton was imported without TRITON_INTERPRET=1")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "hybrid"])
def test_paged(pairs: dict[str, Pair], kind: str) -> None:
    ran = run(pairs[kind], SETTINGS, WORK, shuffled=3, attention="triton")
    assert ran.count("cow_copies") > 0
    assert worst_error(pairs[kind], ran) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("pool_slots", [300, 1001])
def test_contiguous_extents_that_begin_anywhere(pairs: dict[str, Pair], pool_slots: int) -> None:
    settings = replace(
        SETTINGS, layout="contiguous", pool_slots=pool_slots, reservation="oracle", placement="first-fit"
    )
    ran = run(pairs["mistral"], settings, WORK, attention="triton")
    assert worst_error(pairs["mistral"], ran) < 1e-4


@pytest.mark.slow
def test_what_a_decode_graph_would_replay(pairs: dict[str, Pair]) -> None:
    """Three rows in buffers for four: the logits are those of the plain step, and padding writes nowhere."""
    from kvplan.engine.decode_graphs import DecodeAttention, DecodeGraphs, DecodeInputs, padded_size

    pair = pairs["hybrid"]
    settings = replace(SETTINGS, groups=pair.groups)
    replica = Replica(settings, workload([5, 9, 21], [4, 4, 4]))
    pools = [KvPool(pool_shape(pair.shape, settings, pair.members, torch.float32), torch.device("cpu"))]
    decoder = Decoder(pair.shape, pair.weights)
    tokens = np.arange(1, 36)
    now = 0.0
    for _ in range(2):  # two steps prefill, then all decode
        assert replica.plan(now)
        batch = step_batch(replica.core)
        count = len(batch.positions)
        if count == len(batch.row):
            break
        sampled = torch.from_numpy(batch.sampled)
        ids = torch.from_numpy(tokens[:count])
        decoder.forward(ids, torch.from_numpy(batch.positions), sampled, TorchAttention(pools[0], batch))
        now += 1.0
        replica.commit(now)
    assert DecodeGraphs().takes(batch)
    assert padded_size(3) == 4
    other = KvPool(pools[0].shape, torch.device("cpu"))
    other.tensor.copy_(pools[0].tensor)
    ids = np.array([3, 1, 4])
    plain = decoder.forward(
        torch.from_numpy(ids), torch.from_numpy(batch.positions), torch.arange(3), TorchAttention(pools[0], batch)
    )
    tables = replica.core.tables
    inputs = DecodeInputs.empty(4, tables.shape[0], tables.shape[2], other.device)
    inputs.fill(batch, ids)
    padded = decoder.forward(inputs.token_ids, inputs.positions, torch.arange(4), DecodeAttention(other, inputs))
    assert float((padded[:3] - plain).abs().max() / plain.abs().max()) < 1e-4
    assert torch.allclose(other.tensor, pools[0].tensor, atol=1e-5)
