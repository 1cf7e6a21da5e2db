"""Reading profiles in Vidur's format: ``attention.csv`` and ``mlp.csv``, milliseconds of one layer.

``mlp.csv`` holds the linear layers by ``num_tokens``; ``attention.csv`` one prefill chunk on a cache
(``is_prefill``) or a batch of decodes of equal contexts. Each operation has columns
``time_stats.NAME.{min,max,mean,median,std}``: the median counts. A step of both is the sum of the two, as
Vidur takes it; the output projection is not measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvplan.calibration.tables import read_table
from kvplan.errors import InputError
from kvplan.timing.profile import Operation, Profile, RankProfile

if TYPE_CHECKING:
    import pandas as pd

ONCE_A_STEP = {"emb"}
FEED_FORWARD = {"mlp_up_proj", "mlp_act", "mlp_down_proj"}
RANKS = "num_tensor_parallel_workers"


def import_vidur(folder: str | Path) -> Profile:
    """The profile in ``folder``, one `RankProfile` for each ``num_tensor_parallel_workers`` of both files.

    Raises:
        InputError: a missing file or column, or a cell that is no number, with its line.
    """
    folder = Path(folder)
    mlp = read_table(folder / "mlp.csv", ("num_tokens", RANKS))
    kernels = (_median("attn_prefill"), _median("attn_decode"))
    sizes = ("batch_size", "prefill_chunk_size", "kv_cache_size", RANKS)
    attention = read_table(folder / "attention.csv", (*sizes, *kernels))
    names = [c.split(".")[1] for c in mlp.columns if c.startswith("time_stats.") and c.endswith(".median")]
    ranks = {}
    for tp in sorted(set(mlp[RANKS]) & set(attention[RANKS])):
        ranks[int(tp)] = RankProfile(
            tuple(_operation(name, mlp[mlp[RANKS] == tp]) for name in names),
            _attention(attention[attention[RANKS] == tp]),
        )
    if not ranks:
        raise InputError("mlp.csv and attention.csv share no tensor-parallel size", source=str(folder), field=RANKS)
    shape = {
        key: int(attention[key].iloc[0])
        for key in ("n_embd", "n_q_head", "n_kv_head", "block_size", "max_model_len")
        if key in attention.columns
    }
    backend = str(attention["attention_backend"].iloc[0]) if "attention_backend" in attention.columns else ""
    return Profile(
        name=folder.name,
        ranks=ranks,
        machine={"attention_backend": backend.rsplit(".", 1)[-1], **shape},
        source={"format": "Vidur", "path": folder.name},
        notes=("kernel times of one layer; no output projection, no sampler, no step of both kinds",),
    )


def _median(name: str) -> str:
    return f"time_stats.{name}.median"


def _operation(name: str, rows: pd.DataFrame) -> Operation:
    mean = rows.groupby("num_tokens", sort=True)[_median(name)].mean()
    return Operation(
        name,
        mean.index.to_numpy(float),
        mean.to_numpy(float) * 1e-3,
        per="step" if name in ONCE_A_STEP else "layer",
        layers="dense" if name in FEED_FORWARD else "all",
    )


def _attention(rows: pd.DataFrame) -> NDArray[np.float64]:
    """Both kinds of rows as `profile.ATTENTION`, with what surrounds the kernel (cache write, reshapes)."""
    around = ("attn_input_reshape", "attn_kv_cache_save", "attn_output_reshape")
    beside = sum(rows[_median(name)] for name in around if _median(name) in rows.columns)
    prefill = rows["prefill_chunk_size"] > 0
    kernel = rows[_median("attn_prefill")].where(prefill, rows[_median("attn_decode")])
    table = rows.assign(
        chunk=rows["prefill_chunk_size"],
        prior=rows["kv_cache_size"].where(prefill, 0.0),
        count=rows["batch_size"].where(~prefill, 0.0),
        context=rows["kv_cache_size"].where(~prefill, 0.0),
        seconds=(kernel + beside) * 1e-3,
    )
    key = ["chunk", "prior", "count", "context"]
    mean = table.groupby(key, sort=True, as_index=False)["seconds"].mean()
    return mean[[*key, "seconds"]].to_numpy(float, copy=True)
