"""Data and code for inside the page: gzip, then base64, opened in the browser by DecompressionStream.

Base64 holds no ``<``, so nothing that came in with a trace can end the script element that carries it.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from functools import cache
from importlib.resources import files
from typing import Any

PLOTLY = "plotly-cartesian-4.1.1.min.js.gz"


def finite(value: Any) -> Any:
    """JSON has no NaN: it and the infinities become null, and NumPy's scalars Python's, all the way down."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def pack_json(value: Any) -> str:
    """The same bytes for the same value (no time stamp in the gzip header)."""
    text = json.dumps(finite(value), separators=(",", ":"), ensure_ascii=False)
    raw = text.encode("utf-8", "backslashreplace")
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode("ascii")


def asset(name: str) -> str:
    return (files("kvplan.report") / "assets" / name).read_text("utf-8")


@cache
def plotly_bundle() -> str:
    """plotly.js (cartesian, MIT), as published, gzipped and in base64."""
    return base64.b64encode((files("kvplan.report") / "assets" / PLOTLY).read_bytes()).decode("ascii")
