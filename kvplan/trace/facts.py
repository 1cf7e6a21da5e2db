"""Files that tell of an engine but hold no request: a startup log, a run's settings, a side table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.errors import InputError


class NoRequestsError(InputError):
    """The file was understood, and there is no request in it.

    Args:
        format: what it is.
        facts: what it tells, by plain name.
    """

    def __init__(self, message: str, *, format: str, facts: Mapping[str, Any], source: str, hint: str | None = None):
        super().__init__(message, source=source, line=1, hint=hint)
        self.format = format
        self.facts = dict(facts)
