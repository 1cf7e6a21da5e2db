"""Equal identities have equal ids; what a later prompt names is what was generated."""

from __future__ import annotations

import numpy as np

from kvplan.core.replica import Workload
from kvplan.core.settings import Settings
from kvplan.engine.tokens import TokenIds, identity_ids
from tests.engine.models import Pair
from tests.engine.runs import run, worst_error


def session() -> Workload:
    """Request 1 begins with the whole of request 0, answer included; 2 shares the first 20 tokens only."""
    return Workload(
        np.array([0.0, 9.0, 9.0]),
        np.array([40, 70, 50]),
        np.array([16, 8, 8]),
        segment_ptr=np.array([0, 1, 3, 4]),
        segment_source=np.array([5, 5, 77, 5]),
        segment_start=np.array([0, 0, 0, 0]),
        segment_tokens=np.array([40, 40, 16, 20]),
        output_source=np.array([77, -1, -1]),
    )


def test_ids_follow_identities() -> None:
    ids = TokenIds(session(), 1000)
    first, second, third = (ids.prompt(request) for request in range(3))
    assert (second[:40] == first).all()
    assert (third[:20] == first[:20]).all()
    assert (second[40:56] == ids.given_output(0)).all()
    assert (second[56:] != third[20:34]).any(), "what no trace shares is not shared"
    assert ids.given_output(1) is None


def test_an_identity_has_one_id_wherever_a_segment_begins() -> None:
    assert (identity_ids(9, 0, 50, 1 << 20)[17:] == identity_ids(9, 17, 33, 1 << 20)).all()
    assert len(set(identity_ids(9, 0, 5000, 1 << 40).tolist())) == 5000


def test_a_second_turn_hits_the_first_ones_answer(pairs: dict[str, Pair]) -> None:
    settings = Settings(
        block_size=8, num_gpu_blocks=60, max_model_len=128, enable_prefix_caching=True, skip=False, max_num_seqs=4
    )
    ran = run(pairs["llama"], settings, session())
    # 55 of the 56 tokens of the first turn were computed, and 20 are shared: whole blocks of 8.
    assert ran.count("hit_tokens") == 48 + 16
    assert ran.answer(0) == identity_ids(77, 0, 16, pairs["llama"].shape.vocab_size).tolist()
    assert worst_error(pairs["llama"], ran) < 1e-4
