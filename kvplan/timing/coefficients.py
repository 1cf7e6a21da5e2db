"""What no model config and no data sheet says: how much of the peak an engine reaches, and what it adds.

Every coefficient has a name, a unit, a reason, and can be overridden by that name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from kvplan.errors import InputError
from kvplan.timing.step_times import Term


def _coefficient(default: float, unit: str, source: str) -> float:
    value: float = field(default=default, metadata={"unit": unit, "source": source})
    return value


class Named:
    """Base of the dataclasses of coefficients: overriding and printing by field name."""

    def with_overrides(self, overrides: Mapping[str, float] | None, *, where: str = "timing.coefficients") -> Named:
        """A copy with the given values.

        Raises:
            InputError: an unknown name, or a value that is no finite number >= 0.
        """
        known = {f.name for f in fields(self)}  # type: ignore[arg-type]
        for name, value in (overrides or {}).items():
            if name not in known:
                raise InputError("unknown coefficient", field=where, value=name, hint="one of " + ", ".join(known))
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0:
                raise InputError("a coefficient is a finite number >= 0", field=f"{where}.{name}", value=value)
        return replace(self, **(overrides or {}))  # type: ignore[type-var]

    def terms(self) -> tuple[Term, ...]:
        """Each coefficient with its unit and source; "given" where it is not the default."""
        return tuple(
            Term(
                f.name,
                getattr(self, f.name),
                f.metadata["unit"],
                f.metadata["source"] if getattr(self, f.name) == f.default else "given",
            )
            for f in fields(self)  # type: ignore[arg-type]
        )


FITTED = "fitted on served TPOT, H100 and H200 (benchmarks/endtoend_tpot.py --fit)"


@dataclass(frozen=True)
class RooflineCoefficients(Named):
    """Of `kvplan.timing.roofline`. The fitted ones were judged on a B200, which the fit had not seen."""

    weight_read_efficiency: float = _coefficient(0.88, "of HBM peak", FITTED)
    expert_read_efficiency: float = _coefficient(0.58, "of HBM peak", FITTED + ": routed experts, few tokens each")
    linear_flops_efficiency: float = _coefficient(0.53, "of peak FLOPs", FITTED)
    kv_read_efficiency: float = _coefficient(0.82, "of HBM peak", FITTED + "; FA3 alone reaches 0.87-0.93")
    attention_flops_efficiency: float = _coefficient(0.45, "of bf16 peak FLOPs", "causal prefill of FA2 and FA3")
    activation_read_efficiency: float = _coefficient(0.70, "of HBM peak", "norms, rotary, activation kernels")
    layer_s: float = _coefficient(40e-6, "s a layer", FITTED + ": small kernels and the gaps between all")
    expert_layer_s: float = _coefficient(35e-6, "s an expert layer", FITTED + ": routing, permuting, launches")
    host_step_s: float = _coefficient(1.1e-3, "s a step", FITTED + ": launch, input preparation, sampling")
    host_row_s: float = _coefficient(50e-6, "s a sequence", FITTED + ": scheduling, sampling, detokenizing")
    all_reduce_s: float = _coefficient(6.7e-6, "s an all-reduce", FITTED + ": latency of a small one")
    link_efficiency: float = _coefficient(0.70, "of the link's peak", "all-reduce, pipeline hand-over")
    swap_efficiency: float = _coefficient(0.80, "of the host link's peak", "pinned PCIe copies")
