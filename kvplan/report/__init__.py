"""The capacity report: figures, tables, the HTML page, and the other forms a result can leave in."""

from kvplan.report.page import render, write_report

__all__ = ["render", "write_report"]
