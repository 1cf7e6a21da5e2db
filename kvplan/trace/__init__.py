"""Traces: read, generated, written."""

from kvplan.trace.inline import inline_trace
from kvplan.trace.read import read_trace
from kvplan.trace.synthetic import synthesize
from kvplan.trace.trace import Content, Origin, Recorded, Trace

__all__ = ["Content", "Origin", "Recorded", "Trace", "inline_trace", "read_trace", "synthesize"]
