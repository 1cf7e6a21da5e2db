"""A scenario file for a generator: the description that ``synthesize`` takes, readable by people."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.trace.fit import Closeness

_WIDTH = 108


def closeness_lines(rows: Sequence[Closeness]) -> list[str]:
    """A table of what the real trace has, what the generator draws and how far off that is."""
    lines = [f"{'figure':<32}{'real':>11}{'drawn':>11}{'off':>9}"]
    for row in rows:
        off = f"{row.relative:+.1%}" if row.real else f"{row.relative:+.3g}"
        lines.append(f"{row.figure:<32}{row.real:>11.5g}{row.drawn:>11.5g}{off:>9}")
    return lines


def generator_yaml(
    spec: Mapping[str, Any], *, comment: Sequence[str] = (), scenario: Mapping[str, Any] | None = None
) -> str:
    """The scenario as text: comment, then ``scenario``'s keys, then ``workload: {synthetic: spec}``."""
    parts = [f"# {line}".rstrip() for line in comment]
    parts += [f"{key}: {_flow(value, 2)}" for key, value in (scenario or {}).items()]
    parts += ["workload:", "  synthetic:"]
    parts += [f"    {key}: {_flow(value, 6)}" for key, value in spec.items()]
    return "\n".join(parts) + "\n"


def _flow(value: Any, indent: int) -> str:
    import yaml  # only where a file is written

    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=_WIDTH - indent, allow_unicode=True)
    text = text.removesuffix("\n").removesuffix("\n...")
    return textwrap.indent(text, " " * indent).lstrip()
