"""What kind of file this is, by its content; never by its name."""

from __future__ import annotations

from enum import Enum

from kvplan.trace.readers.engine_log import looks_like_log
from kvplan.trace.readers.prometheus import looks_like_metrics
from kvplan.trace.readers.servegen import looks_like_rates
from kvplan.trace.readers.yaml_requests import looks_like_scenario
from kvplan.trace.source import Source


class Kind(Enum):
    """How the bytes are to be parsed; which format they hold is told by the parsed names."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    PROMETHEUS = "prometheus"
    ENGINE_LOG = "engine-log"
    SERVEGEN_RATES = "servegen-rates"
    SCENARIO = "scenario"


def detect_kind(source: Source) -> Kind:
    """The kind of ``source``; what nothing else claims is a table."""
    if source.head.startswith(b"PAR1"):
        return Kind.PARQUET
    text = source.head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if looks_like_rates(text):
        return Kind.SERVEGEN_RATES
    if text[:1] == "{" or (text[:1] == "[" and text[1:].lstrip()[:1] in ("{", "]", "")):
        return Kind.JSON
    if looks_like_metrics(text):
        return Kind.PROMETHEUS
    if looks_like_scenario(text):
        return Kind.SCENARIO
    if looks_like_log(text):
        return Kind.ENGINE_LOG
    return Kind.CSV
