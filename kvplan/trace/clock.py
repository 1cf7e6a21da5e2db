"""From what a file calls a time to seconds: units, dates, epochs."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, Literal

from kvplan.errors import InputError
from kvplan.trace.rows import number

TimeUnit = Literal["s", "ms", "us", "ns"]
PER_SECOND: dict[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

EPOCH_S = 1e8
"""A clock that reads more than three years counts from an epoch, not from the start of the trace."""

OPEN_LOOP = (
    "later turns arrive open-loop: the file gives waits, not arrivals, and service is taken to last no time"
    " (a client that waits for the answer sends them later)"
)
"""What to tell of turns that are told by the waits between them."""

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,18}))?)?)?\s*(Z|UTC|[+-]\d\d:?\d\d)?",
    re.ASCII,
)


def check_unit(unit: str | None) -> None:
    """Refuse a ``--time-unit`` that does not exist."""
    if unit is not None and unit not in PER_SECOND:
        raise InputError("is not a unit of time", field="time_unit", value=unit, hint=", ".join(PER_SECOND))


def iso_ns(text: str, field: str) -> int:
    """Nanoseconds since 1970 of an ISO 8601 date: any fractional digits; ``Z``, an offset or none (UTC).

    Raises:
        InputError: not such a date; without a place.
    """
    match = _ISO.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
        leap = second == 60  # a leap second reads as the second after
        days = dt.date(year, month, day).toordinal() - dt.date(1970, 1, 1).toordinal()
        dt.time(hour, minute, 59 if leap else second)  # refuses 25:00
    except ValueError:
        raise InputError("is not an ISO 8601 date", field=field, value=text[:60]) from None
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    zone = match[8]
    if zone and zone[0] in "+-":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return seconds * 10**9 + int((match[7] or "0").ljust(9, "0")[:9])


def epoch_unit(reading: float) -> str | None:
    """The unit in which ``reading`` is a moment between 2001 and 2286, counted from 1970; None where it is none."""
    return next((unit for unit, each in PER_SECOND.items() if 1e9 * each <= reading < 1e10 * each), None)


class Clock:
    """Turns the times of one file into float seconds without losing digits.

    Large readings (an epoch in nanoseconds exceeds what a float holds exactly) are taken relative to the
    first. Numbers are in ``unit``; a text that is no number is an ISO 8601 date.
    """

    def __init__(self, unit: str, field: str) -> None:
        self.unit = unit
        self.field = field
        self.is_date: bool | None = None
        """None before the first reading."""
        self.base: int | float = 0
        """The reading that counts as 0 s, in the clock's unit (nanoseconds for dates)."""
        self.has_zone = False
        """Whether the first date names its offset from UTC."""

    @property
    def per_second(self) -> int:
        """Readings a second."""
        return PER_SECOND["ns" if self.is_date else self.unit]

    def begin(self, value: Any) -> None:
        """Take the first reading: is it a date, and does the clock count from an epoch?

        Raises:
            InputError: not a time; without a place.
        """
        is_date, reading = self._reading(value)
        self.is_date = is_date
        self.has_zone = is_date and (match := _ISO.fullmatch(value.strip())) is not None and match[8] is not None
        self.base = reading if is_date or abs(reading) > EPOCH_S * self.per_second else 0

    def seconds(self, value: Any) -> float:
        """Seconds since the file's own zero, or since its first reading where that is an epoch or a date.

        Raises:
            InputError: not a time, negative, or dates and numbers mixed; without a place.
        """
        is_date, reading = self._reading(value)
        if self.is_date is None:
            self.begin(value)
        elif self.is_date != is_date:
            raise InputError("mixes dates and numbers", field=self.field, value=value)
        if not is_date and reading < 0:
            raise InputError("is negative", field=self.field, value=value)
        since = (reading - self.base) / self.per_second
        if not abs(since) < 1e12:
            raise InputError("is no plausible time", field=self.field, value=value)
        return since

    def _reading(self, value: Any) -> tuple[bool, int | float]:
        is_date = isinstance(value, str) and bool(_ISO.match(value.strip()))
        return is_date, iso_ns(value, self.field) if is_date else number(value, self.field)
