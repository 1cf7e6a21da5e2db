"""``kvplan models`` and ``kvplan gpus``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from kvplan.catalog import gpu_names, load_gpu, load_model, model_names
from kvplan.catalog.architecture import KvGroup, ModelConfig
from kvplan.memory import active_params, kv_bytes_per_token, total_params
from kvplan.terminal.console import standard_output

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def models(
    name: Annotated[
        str | None, typer.Argument(help="One model: a catalogue name, a Hugging Face id, a config.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The models of the catalogue, or one of them in full: shape, parameters, cache per token, source."""
    chosen = [load_model(name)] if name else [load_model(known) for known in model_names()]
    rows = [_model_row(model) for model in chosen]
    if as_json:
        typer.echo(json.dumps(rows if name is None else rows[0], indent=2))
        return
    console = standard_output()
    if name:
        for key, value in rows[0].items():
            shown = "; ".join(_group_words(group) for group in value) if key == "kv_groups" else value
            console.print(f"{key:>24}  {shown}", markup=False, soft_wrap=True)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for title in ("layers", "params B", "active B", "KiB/token"):
        table.add_column(title, justify="right")
    table.add_column("cache")
    for row in rows:
        table.add_row(
            row["name"],
            str(row["num_hidden_layers"]),
            f"{row['params_b']:.2f}",
            f"{row['active_params_b']:.2f}",
            f"{row['kv_bytes_per_token'] / 1024:g}",
            "; ".join(_group_words(group) for group in row["kv_groups"]),
        )
    console.print(table)


def gpus(as_json: AsJson = False) -> None:
    """The GPUs of the catalogue: memory as the driver reports it, bandwidth, peak rates, source."""
    rows = [load_gpu(name) for name in gpu_names()]
    if as_json:
        typer.echo(json.dumps([vars(gpu) for gpu in rows], indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("GPU")
    for title in ("memory GiB", "HBM GB/s", "bf16 TFLOP/s", "fp8", "host link GB/s", "NVLink GB/s"):
        table.add_column(title, justify="right")
    table.add_column("source")
    for gpu in rows:
        table.add_row(
            gpu.name,
            f"{gpu.memory_gib:.2f}",
            f"{gpu.hbm_bytes_per_s / 1e9:,.0f}",
            f"{gpu.bf16_flops / 1e12:,.0f}",
            f"{gpu.fp8_flops / 1e12:,.0f}" if gpu.fp8_flops else "–",
            f"{gpu.link_bytes_per_s / 1e9:,.0f}",
            f"{gpu.nvlink_bytes_per_s / 1e9:,.0f}" if gpu.nvlink_bytes_per_s else "–",
            gpu.source,
        )
    standard_output().print(table)


def _model_row(model: ModelConfig) -> dict[str, Any]:
    return {
        "name": model.name,
        "num_hidden_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": 1 if model.is_mla else model.num_key_value_heads,
        "head_dim": model.kv_lora_rank + model.qk_rope_head_dim if model.is_mla else model.head_dim,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
        "dtype": model.dtype,
        "quantization": model.quantization.method if model.quantization else None,
        "params_b": total_params(model) / 1e9,
        "active_params_b": active_params(model) / 1e9,
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "kv_groups": [_group_row(group) for group in model.kv_groups],
        "source": model.source,
    }


def _group_row(group: KvGroup) -> dict[str, Any]:
    row: dict[str, Any] = {"attention": group.attention, "layers": group.layers}
    if group.window:
        row["window"] = group.window
    if group.head_dim:
        row |= {"num_key_value_heads": group.num_key_value_heads, "head_dim": group.head_dim}
    return row


def _group_words(group: dict[str, Any]) -> str:
    window = f" {group['window']}" if "window" in group else ""
    return f"{group['layers']} {group['attention']}{window}"
