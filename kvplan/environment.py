"""The one place that reads environment variables."""

from __future__ import annotations

import os


def debug_wanted() -> bool:
    """``KVPLAN_DEBUG=1``: show the traceback of what should not have happened."""
    return os.environ.get("KVPLAN_DEBUG", "") not in ("", "0")
