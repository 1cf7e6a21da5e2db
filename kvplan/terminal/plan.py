"""A capacity plan as people read it: what to buy, why, how much is left, and what to paste."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.terminal.formats import count, decimal, percent


def print_plan(console: Console, plan: Mapping[str, Any]) -> None:
    best = plan["best"]
    console.print(Text(_headline(plan, best), style="bold"), soft_wrap=True)
    console.print(Text(f"kept:    {best['nearest_bound']}"), soft_wrap=True)
    console.print(
        Text(
            f"margin:  up to {decimal(best['largest_rate'])} requests/s ({percent(best['margin'])} more); "
            f"beyond that {best['binds']}"
        ),
        soft_wrap=True,
    )
    if plan["survive"]:
        console.print(Text(f"         with {plan['survive']} of the replicas missing"))
    console.print(_table([best, *plan["others"]]))
    for one in plan["cannot"]:
        nearest = f"; {one['nearest']}" if one["nearest"] else ""
        console.print(Text(f"{one['gpu']}: {one['reason']}{nearest}", style="yellow"), soft_wrap=True)
    for note in best["notes"]:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    console.print(Text(best["flags"]))
    console.print(Text(f"{plan['simulations']} simulations"), style="dim")


def _headline(plan: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    replicas = f"{best['replicas']} replica{'s' if best['replicas'] > 1 else ''}"
    price = f", {decimal(best['price_per_hour'])} an hour" if best["price_per_hour"] is not None else ""
    return (
        f"{decimal(plan['rate'])} requests/s take {count(best['gpus'])} x {best['gpu']}: {replicas} of "
        f"{best['gpus'] // best['replicas']}{price}"
    )


def _table(answers: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, justify in (
        ("GPU", "left"),
        ("GPUs", "right"),
        ("replicas", "right"),
        ("price/h", "right"),
        ("carries", "right"),
        ("KV GiB", "right"),
        ("changed", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=name != "changed")  # type: ignore[arg-type]
    for one in answers:
        changed = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in one["changes"].items())
        table.add_row(
            one["gpu"],
            count(one["gpus"]),
            count(one["replicas"]),
            decimal(one["price_per_hour"]),
            f"{decimal(one['largest_rate'])}/s",
            decimal(one["kv_cache_gib"]),
            changed or "engine's defaults",
        )
    return table
