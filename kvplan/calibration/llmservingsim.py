"""Reading LLMServingSim's profiles: one folder per model, or per tensor_parallel_size, of CSV files.

``dense.csv`` (layer, tokens), ``per_sequence.csv`` (layer, sequences), ``attention.csv`` (prefill_chunk,
kv_prefill, n_decode, kv_decode), ``moe.csv`` (tokens, activated_experts) where there are experts,
``skew.csv`` where unequal contexts were measured, ``meta.yaml`` here or one folder up. Microseconds of one
layer, taken in eager mode.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.calibration.tables import read_table
from kvplan.errors import InputError
from kvplan.timing.profile import EXPERTS, SKEW, Operation, Profile, RankProfile

if TYPE_CHECKING:
    import pandas as pd

ONCE_A_STEP = {"embedding", "final_layernorm"}
TWICE_A_LAYER = {"layernorm"}
FEED_FORWARD = {"gate_up_proj", "act_fn", "down_proj"}


def import_llmservingsim(folder: str | Path) -> Profile:
    """The profile in ``folder``, which is a ``tpN`` folder, holds the CSVs itself, or holds ``tpN`` folders.

    Raises:
        InputError: no such folder, a file or column that is missing, a cell that is no number.
    """
    folder = Path(folder)
    ranks: dict[int, RankProfile] = {}
    tp_folders = sorted(path for path in folder.glob("tp*") if re.fullmatch(r"tp\d+", path.name) and path.is_dir())
    meta = _meta(folder)
    if (folder / "dense.csv").exists():
        named = re.fullmatch(r"tp(\d+)", folder.name)
        degrees = meta.get("tp_degrees") or [1]
        ranks[int(named.group(1)) if named else int(degrees[0])] = _rank(folder)
    else:
        for path in tp_folders:
            ranks[int(path.name[2:])] = _rank(path)
    if not ranks:
        raise InputError(
            "no LLMServingSim profile here",
            source=str(folder),
            hint="a folder with dense.csv, or with tp1/dense.csv",
        )
    _borrow_experts(ranks)
    engine = meta.get("engine_effective") or {}
    versions = {key: str(meta[f"{key}_version"]) for key in ("vllm", "cuda", "profiler") if f"{key}_version" in meta}
    return Profile(
        name=f"{meta.get('hardware', folder.name)} {meta.get('model', '')}".strip(),
        ranks=ranks,
        model=str(meta.get("model", "")),
        launch="eager" if engine.get("enforce_eager") else "",
        machine={"gpu": str(meta.get("gpu", meta.get("hardware", "")))},
        versions=versions,
        source={
            "format": "LLMServingSim",
            "path": folder.name,
            "profiled_at": str(meta.get("profiled_at", "")),
        },
        notes=(
            "kernel times of one layer"
            + (" in eager mode: no launch gaps, no host time" if engine.get("enforce_eager") else ""),
        ),
    )


def _meta(folder: Path) -> dict[str, Any]:
    import yaml

    for path in (folder / "meta.yaml", folder.parent / "meta.yaml"):
        if path.exists():
            try:
                found = yaml.safe_load(path.read_text(encoding="utf-8"))
            except yaml.YAMLError as error:
                raise InputError(f"cannot be read as YAML: {error}", source=str(path)) from None
            return found if isinstance(found, dict) else {}
    return {}


def _rank(folder: Path) -> RankProfile:
    dense = read_table(folder / "dense.csv", ("layer", "tokens", "time_us"), text=("layer",))
    heads = read_table(folder / "per_sequence.csv", ("layer", "sequences", "time_us"), text=("layer",))
    attention = _one_query_a_decode(folder / "attention.csv")
    operations = [
        Operation(
            str(name),
            *_points(rows, "tokens"),
            per="step" if name in ONCE_A_STEP else "layer",
            count=2 if name in TWICE_A_LAYER else 1,
            layers="dense" if name in FEED_FORWARD else "all",
        )
        for name, rows in dense.groupby("layer", sort=True)
    ]
    operations += [
        Operation(str(name), *_points(rows, "sequences"), per="step", axis="samples")
        for name, rows in heads.groupby("layer", sort=True)
    ]
    skew = _comparable(_skew(folder / "skew.csv"), attention)
    return RankProfile(tuple(operations), attention, _experts(folder / "moe.csv"), skew)


def _points(rows: pd.DataFrame, axis: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean = rows.groupby(axis, sort=True)["time_us"].mean()
    return mean.index.to_numpy(float), mean.to_numpy(float) * 1e-6


def _one_query_a_decode(path: Path) -> NDArray[np.float64]:
    """attention.csv, without the decodes of several tokens that newer ones hold too."""
    import pandas as pd

    table = read_table(path, ("prefill_chunk", "n_decode", "kv_decode", "time_us"))
    prior = "kv_prefill" if "kv_prefill" in table.columns else "prefill_key"
    table = read_table(path, (prior,)).assign(time_us=table["time_us"])
    if "decode_q_len" in table.columns:
        table = table[pd.to_numeric(table["decode_q_len"]) <= 1]
    key = ["prefill_chunk", prior, "n_decode", "kv_decode"]
    mean = table.groupby(key, sort=True, as_index=False)["time_us"].mean()
    return _in_seconds(mean[[*key, "time_us"]])


def _in_seconds(table: Any, microseconds: int = 1) -> NDArray[np.float64]:
    """The table as an array, its last columns turned from microseconds to seconds."""
    rows = table.to_numpy(float, copy=True)
    rows[:, -microseconds:] *= 1e-6
    return rows


def _experts(path: Path) -> NDArray[np.float64]:
    if not path.exists():
        return np.zeros((0, len(EXPERTS)))
    table = read_table(path, ("tokens", "activated_experts", "time_us"))
    if "ep" in table.columns:
        table = table[table["ep"].astype(float) == 1]
    return _in_seconds(table[["tokens", "activated_experts", "time_us"]])


def _skew(path: Path) -> NDArray[np.float64]:
    if not path.exists():
        return np.zeros((0, len(SKEW)))
    names = ("pc", "kp", "n", "nb", "kvs", "kv_big", "t_mean_us", "t_max_us", "t_skew_us")
    return _in_seconds(read_table(path, names)[list(names)], microseconds=3)


def _comparable(skew: NDArray[np.float64], attention: NDArray[np.float64]) -> NDArray[np.float64]:
    """skew.csv in attention.csv's unit: some hold the sum of their repetitions, three times the time of one.

    Both tables hold decode batches of equal contexts alone (`t_max_us`), which must take the same time.
    """
    known = {(n, c): t for chunk, _, n, c, t in attention if chunk == 0}
    pairs = [(row[7], known[row[2], row[5]]) for row in skew if row[0] == 0 and (row[2], row[5]) in known]
    if pairs:
        ratio = float(np.median([ours / theirs for ours, theirs in pairs]))
        if round(ratio) > 1 and abs(ratio / round(ratio) - 1) < 0.05:
            skew[:, 6:] /= round(ratio)
    return skew


def _borrow_experts(ranks: dict[int, RankProfile]) -> None:
    """Experts are often measured at TP 1 alone: elsewhere each rank does 1/TP of every expert's work."""
    if 1 not in ranks or not len(ranks[1].experts):
        return
    for tp, rank in ranks.items():
        if not len(rank.experts):
            experts = ranks[1].experts.copy()
            experts[:, 2] /= tp
            ranks[tp] = RankProfile(rank.operations, rank.attention, experts, rank.skew)
