"""A memory plan as a table: each term with its size and where it comes from, then what the engine prints."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.memory import Advice, JustEnough, MemoryPlan
from kvplan.memory.overrides import GIB
from kvplan.memory.uncertainty import expected_error
from kvplan.terminal.formats import count

_TITLES = {
    "total": "GPU",
    "requested": "engine may use",
    "weights": "weights",
    "non_torch": "non-torch",
    "activation": "activation peak",
    "cuda_graphs": "CUDA graphs",
}


def print_plan(console: Console, plan: MemoryPlan) -> None:
    """The sum of the tightest rank, the cache it leaves, and the other ranks where there are some."""
    split = f"TP {plan.tensor_parallel_size}, PP {plan.pipeline_parallel_size}"
    headline = f"{plan.model.name} on {plan.gpu.name}, {split}, {plan.engine} {plan.version}: per GPU"
    console.print(Text(headline, style="bold"))
    console.print(_terms(plan))
    console.print(_cache(plan))
    if len(plan.ranks) > 1:
        console.print(_ranks(plan))
    for note in plan.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def print_just_enough(console: Console, enough: JustEnough) -> None:
    """What to set for a stated load."""
    lines = [
        f"for {enough.requests} requests of {enough.length} tokens ({enough.blocks_per_request} blocks each):",
        f"  --num-gpu-blocks-override {enough.num_gpu_blocks}",
        f"  --kv-cache-memory-bytes {enough.kv_cache_memory_bytes}   ({enough.kv_cache_memory_bytes / GIB:.2f} GiB)",
    ]
    if enough.gpu_memory_utilization <= 1:
        lines.append(f"  or --gpu-memory-utilization {enough.gpu_memory_utilization:.4f}")
    if not enough.fits:
        lines.append("  which is more than these flags leave for the cache")
    console.print(Text("\n".join(lines)), soft_wrap=True)


def print_advice(console: Console, plan: MemoryPlan, advice: Advice) -> None:
    """Why it would not start, and what would."""
    for problem in plan.problems:
        console.print(Text(f"would not start: {problem.message}", style="bold"), soft_wrap=True)
    console.print(Text(advice.sentence()), soft_wrap=True)


def _terms(plan: MemoryPlan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("GiB", justify="right")
    table.add_column("from")
    for term in plan.terms:
        origin = term.origin
        if term.name == "cuda_graphs" and plan.engine == "vllm" and not plan.defaults.graphs_charged:
            origin += "; not subtracted before vLLM 0.21"
        table.add_row(_TITLES[term.name], f"{term.value / GIB:,.2f}", Text(origin))
    error = expected_error(plan)
    shown = plan.kv_cache_bytes if plan.feasible or error.gib == 0 else plan.available_bytes
    words = f"± {error.gib:.2f} GiB: {error.words}" if error.gib else error.words
    table.add_row(Text("KV cache", style="bold"), Text(f"{shown / GIB:,.2f}", style="bold"), Text(words))
    return table


def _cache(plan: MemoryPlan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("")
    hybrid = len(plan.cache_groups) > 1
    table.add_row("bytes a token", count(plan.kv_bytes_per_token), "all layers of this GPU at full length")
    table.add_row("bytes a block", count(plan.bytes_per_block), _groups(plan))
    table.add_row("blocks", count(plan.num_gpu_blocks), f"{plan.usable_blocks:,} usable")
    table.add_row("tokens as logged", count(plan.kv_cache_size_tokens), _definition(plan))
    other = plan.tokens_by_blocks if plan.defaults.tokens_by_concurrency else plan.tokens_by_concurrency
    if hybrid or other != plan.kv_cache_size_tokens:
        table.add_row("by the other definition", count(other), "")
    table.add_row(
        "max concurrency",
        f"{plan.max_concurrency:.2f}x",
        f"{plan.max_model_len:,} tokens: {plan.blocks_per_request} blocks",
    )
    return table


def _groups(plan: MemoryPlan) -> str:
    if len(plan.cache_groups) == 1:
        group = plan.cache_groups[0]
        return f"{group.block_size} tokens in {group.layers} layers"
    sizes: dict[tuple[str, int, int], int] = {}
    for group in plan.cache_groups:
        key = (group.attention, group.layers, group.block_size)
        sizes[key] = sizes.get(key, 0) + 1
    return "groups: " + ", ".join(
        f"{n}x {kind} ({layers} layers, {size} tokens)" for (kind, layers, size), n in sizes.items()
    )


def _definition(plan: MemoryPlan) -> str:
    if plan.defaults.tokens_by_concurrency:
        return "max concurrency x max_model_len (vLLM 0.21 and later)"
    return "blocks x block size" + (" / groups" if len(plan.cache_groups) > 1 else "")


def _ranks(plan: MemoryPlan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="stages, the tightest first", title_justify="left")
    for title in ("stage", "layers", "weights", "activation", "KV cache", "blocks alone"):
        table.add_column(title, justify="right")
    for rank in plan.ranks:
        table.add_row(
            str(rank.stage),
            str(rank.layers),
            f"{rank.weights_bytes / GIB:.2f}",
            f"{rank.activation_bytes / GIB:.2f}",
            f"{rank.available_bytes / GIB:.2f}",
            count(rank.num_gpu_blocks),
        )
    return table
