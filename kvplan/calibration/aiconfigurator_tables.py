"""The parquet tables that ``aiconfigurator-core`` ships, and a GEMM of any shape from those measured."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Points = NDArray[np.float64]


class Tables:
    """The parquet files of one system and framework, each read once, with the columns' names as they are."""

    def __init__(self, system: str, framework: str) -> None:
        spec = importlib.util.find_spec("aiconfigurator_core")
        if spec is None or spec.origin is None:
            raise InputError(
                "aiconfigurator-core is not installed",
                field="--system",
                hint='pip install "kvplan[aiconfigurator]"',
            )
        from importlib.metadata import version

        self.package_version = version("aiconfigurator-core")
        systems = Path(spec.origin).parent / "systems"
        self.root = systems / "data" / system
        self.framework = framework
        if not self.root.is_dir():
            known = sorted(path.name for path in (systems / "data").iterdir() if path.is_dir())
            raise InputError("no such system", field="--system", value=system, hint="one of " + ", ".join(known))
        self.facts = _facts(systems / f"{system}.yaml")
        self.version = self._newest("gemm").name
        self.device = str(self.read("gemm", "gemm_perf", columns=["device"])["device"].iloc[0])

    def _newest(self, kind: str) -> Path:
        folder = self.root / kind / self.framework
        versions = sorted(folder.glob("*"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
        if not versions:
            have = sorted(p.name for p in (self.root / kind).glob("*")) if (self.root / kind).is_dir() else []
            raise InputError(
                f"no {kind} tables of this engine",
                field="--framework",
                value=self.framework,
                hint="there are " + (", ".join(have) or "none"),
            )
        return versions[-1]

    def read(self, kind: str, name: str, *, columns: list[str] | None = None, **equal: Any) -> pd.DataFrame:
        """The rows of a table where every named column has the named value."""
        import pandas as pd

        path = self._newest(kind) / f"{name}.parquet"
        filters = [(key, "==", value) for key, value in equal.items()] or None
        rows = pd.read_parquet(path, columns=columns, filters=filters)
        if rows.empty:
            shown = ", ".join(f"{key}={value}" for key, value in equal.items())
            raise InputError(f"the {name} table of {self.root.name} holds nothing of", field=kind, value=shown)
        return rows

    def gemm(self, dtype: str) -> Gemms:
        return Gemms(self.read("gemm", "gemm_perf", gemm_dtype=dtype))


def _facts(path: Path) -> dict[str, float]:
    import yaml

    gpu = yaml.safe_load(path.read_text(encoding="utf-8"))["gpu"]
    return {
        "bytes_per_s": gpu["mem_bw"] * gpu["mem_bw_empirical_scaling_factor"],
        "kernel_s": gpu["mem_empirical_constant_latency"],
    }


class Gemms:
    """Seconds of ``[m, k] @ [k, n]`` at measured m; between n and k linearly, beyond in proportion."""

    def __init__(self, rows: pd.DataFrame) -> None:
        best = rows.groupby(["m", "n", "k"])["latency"].min()
        self.m, self.n, self.k = (np.sort(best.index.unique(i).to_numpy(float)) for i in range(3))
        table = best.reindex(_product(self.m, self.n, self.k)).to_numpy(float).reshape(len(self.m), len(self.n), -1)
        self.table = table * 1e-3

    def curve(self, n: float, k: float) -> Points:
        """Seconds at every m."""
        scale = max(n / self.n[-1], 1.0) * max(k / self.k[-1], 1.0)
        n, k = min(n, self.n[-1]), min(k, self.k[-1])
        i = int(np.clip(np.searchsorted(self.n, n) - 1, 0, len(self.n) - 2))
        j = int(np.clip(np.searchsorted(self.k, k) - 1, 0, len(self.k) - 2))
        u = (n - self.n[i]) / (self.n[i + 1] - self.n[i])
        v = (k - self.k[j]) / (self.k[j + 1] - self.k[j])
        corners = self.table[:, i : i + 2, j : j + 2]
        weights = np.outer([1 - u, u], [1 - v, v])
        # The largest shapes of both kinds were not measured: a corner without a value gives its weight to
        # the rest.
        held = np.where(np.isnan(corners), 0.0, weights)
        return np.asarray(scale * (np.nan_to_num(corners) * held).sum(axis=(1, 2)) / held.sum(axis=(1, 2)))


def _product(*axes: Points) -> Any:
    import pandas as pd

    return pd.MultiIndex.from_product([axis.astype(int) for axis in axes])
