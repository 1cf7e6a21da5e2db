"""The tables people have: what each format calls its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvplan.errors import InputError

ROLES = ("arrival", "prompt", "output", "id", "session", "priority", "n", "beam_width", "hash_ids")
"""What a column can be for: the keys of ``--columns``."""


@dataclass(frozen=True)
class TableFormat:
    """A table format, told by its header.

    Args:
        name: as ``--format`` takes it.
        columns: role -> column's name.
        unit: of a numeric arrival column.
        marks: further columns that tell the format from others with the same names.
        zero_output_failed: a row without output tokens is a failed request.
        sessions_share: a later turn begins with its former turn where it is long enough.
        rebase: False where the clock is taken at its word (kvplan's own columns).
        note: what to tell of how the columns were understood.
    """

    name: str
    columns: Mapping[str, str]
    unit: str = "s"
    marks: tuple[str, ...] = ()
    zero_output_failed: bool = False
    sessions_share: bool = False
    rebase: bool = True
    note: str = ""

    def fits(self, header: Sequence[str]) -> bool:
        """Whether the header has what the format needs; further columns are fine."""
        optional = ("id", "priority", "n", "beam_width", "session") if not self.marks else ("id",)
        needed = [name for role, name in self.columns.items() if role not in optional]
        return all(name in header for name in (*needed, *self.marks))


# The first that fits wins: those with more columns stand before those with fewer.
TABLES = (
    TableFormat(
        "azure-2025",
        {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"},
        marks=("NumImages",),
    ),
    TableFormat("azure", {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"}),
    TableFormat(
        "apex",
        {"arrival": "StartTimeOffset", "prompt": "ContextTokens", "output": "GeneratedTokens"},
        unit="ns",
    ),
    TableFormat(
        "burstgpt-v3",
        {
            "arrival": "Timestamp",
            "prompt": "Request tokens",
            "output": "Response tokens",
            "session": "Session ID",
        },
        marks=("Elapsed time",),
        zero_output_failed=True,
        sessions_share=True,
    ),
    TableFormat(
        "burstgpt",
        {"arrival": "Timestamp", "prompt": "Request tokens", "output": "Response tokens"},
        zero_output_failed=True,
    ),
    TableFormat(
        "splitwise",
        {"arrival": "arrival_timestamp", "prompt": "prompt_size", "output": "token_size", "id": "request_id"},
    ),
    TableFormat(
        "vidur",
        {"arrival": "arrived_at", "prompt": "num_prefill_tokens", "output": "num_decode_tokens"}
        | {"session": "session_id", "hash_ids": "block_hash_ids"},
    ),
    TableFormat("vidur", {"arrival": "arrived_at", "prompt": "num_prefill_tokens", "output": "num_decode_tokens"}),
    TableFormat("vidur-lengths", {"prompt": "num_prefill_tokens", "output": "num_decode_tokens"}),
    TableFormat(
        "kvplan",
        {"arrival": "arrival_s", "prompt": "prompt_tokens", "output": "output_tokens"}
        | {
            "id": "request_id",
            "priority": "priority",
            "n": "n",
            "beam_width": "beam_width",
            "session": "session",
        },
        rebase=False,
    ),
    TableFormat(
        "generic",
        {"arrival": "arrival", "prompt": "prompt", "output": "output", "id": "id", "priority": "priority"}
        | {"n": "n", "beam_width": "beam_width", "session": "session"},
        sessions_share=True,
        rebase=False,
    ),
    TableFormat("guidellm-trace", {"arrival": "timestamp", "prompt": "input_length", "output": "output_length"}),
    TableFormat("lengths", {"prompt": "prompt_tokens", "output": "output_tokens"}),
    TableFormat("lengths", {"prompt": "input_length", "output": "output_length"}),
)


def table_format(header: Sequence[str]) -> TableFormat | None:
    """The format whose header this is, or a guess by plain names; None where nothing fits."""
    return next((table for table in TABLES if table.fits(header)), None) or guessed_columns(header)


# What people call columns where no format prescribes it; compared without case, spaces and underscores.
_SYNONYMS = {
    "arrival": ("arrival", "arrivaltime", "arrivals", "arrivedat", "timestamp", "time", "starttime", "ts"),
    "prompt": (
        *("prompt", "prompttokens", "promptlength", "promptlen", "numprompttokens", "contexttokens"),
        *("inputtokens", "inputlength", "inputlen", "inputtoks", "numinputtokens", "isl"),
        *("numprefilltokens", "prefilltokens"),
    ),
    "output": (
        *("output", "outputtokens", "outputlength", "outputlen", "outputtoks", "numoutputtokens", "osl"),
        *("numdecodetokens", "decodetokens", "generatedtokens", "completiontokens", "responsetokens"),
    ),
    "id": ("requestid", "id"),
    "session": ("sessionid", "session", "conversationid"),
}
_UNIT_SUFFIX = {"ns": "ns", "us": "us", "ms": "ms", "s": "s", "sec": "s", "seconds": "s"}


def guessed_columns(header: Sequence[str]) -> TableFormat | None:
    """A table whose columns bear plain names; None where prompt and output are not among them."""
    columns: dict[str, str] = {}
    unit = "s"
    for name in header:
        words = name.strip().lower().replace(" ", "_").replace("-", "_").split("_")
        stem, suffix = "".join(words), words[-1]
        for role, synonyms in _SYNONYMS.items():
            timed = role == "arrival" and suffix in _UNIT_SUFFIX and "".join(words[:-1]) in synonyms
            if role not in columns and (stem in synonyms or timed):
                columns[role] = name
                unit = _UNIT_SUFFIX[suffix] if timed else unit
                break
    if "prompt" not in columns or "output" not in columns:
        return None
    understood = ", ".join(f"{role}={name}" for role, name in columns.items())
    return TableFormat("generic", columns, unit, note=f"columns understood by their names: {understood}")


def named_columns(columns: Mapping[str, str], header: Sequence[str], source: str) -> TableFormat:
    """The format that ``--columns`` describes.

    Raises:
        InputError: a role that does not exist, a column that the file does not have, or no prompt column.
    """
    for role, name in columns.items():
        if role not in ROLES:
            raise InputError("is no role", field="columns", value=role, hint=f"roles are {', '.join(ROLES)}")
        if name not in header:
            raise unknown_header(header, source, missing=name)
    if "prompt" not in columns:
        raise InputError(
            "names no prompt column", field="columns", hint="--columns prompt=NAME,output=NAME,arrival=NAME"
        )
    return TableFormat("generic", columns)


def unknown_header(header: Sequence[str], source: str, missing: str | None = None) -> InputError:
    """What to say of a table whose columns nobody knows."""
    shown = ", ".join(name[:40] for name in header[:12]) + (", ..." if len(header) > 12 else "")
    return InputError(
        f"has no column {missing!r}" if missing else "is a table of no known format",
        field="columns",
        value=shown,
        source=source,
        line=1,
        hint="name its columns: --columns arrival=NAME,prompt=NAME,output=NAME (and --time-unit s|ms|us|ns)",
    )
