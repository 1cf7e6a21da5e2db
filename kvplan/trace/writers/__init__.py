"""Writers: a trace as a file that other tools read. Each file is written whole or not at all."""

from kvplan.trace.writers.registry import WRITERS, Written, write_trace, writer_for

__all__ = ["WRITERS", "Written", "write_trace", "writer_for"]
