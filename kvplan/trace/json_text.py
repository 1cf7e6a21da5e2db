"""JSON text that is too long to be decoded at once: checked in one pass, decoded a window at a time.

Python objects take up to 70 times the text they are decoded from (``[],`` is three bytes, an empty list takes 64). So
no more than ``WINDOW`` bytes are given to the decoder at once, and what it makes of them is used or dropped before the
next window. An element that fits into no window is entered: its own elements are taken instead.
"""

from __future__ import annotations

import itertools
import json
import re
from codecs import utf_8_decode
from collections.abc import Iterable, Iterator
from json.decoder import WHITESPACE, scanstring  # type: ignore[attr-defined]  # the scanner in C
from typing import Any, NamedTuple

from kvplan.errors import InputError
from kvplan.trace.json_window import (
    BLANKS,
    DECODER,
    DEEP,
    SPARE,
    TOKEN,
    Window,
    key_and_value,
    most_levels,
    scalars,
    scan_once,
    whole_escapes,
)

WINDOW = 1 << 16
"""Bytes decoded at once: the objects made of them take 3 MB at most."""

NO_COMMA = "Expecting ',' delimiter"
UNFINISHED = "a JSON array lacks its end"
"""What to say where neither a comma nor the end follows an entry; and of the array of a whole file."""

_CHARACTER = 4
"""Bytes at most, of which a window may lack all but one."""
_MOST_STEPS = 4096
"""Entries that are taken one by one before another window is tried."""

_BLANK = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]*")
_WITHIN_CHARACTER = bytes(range(0x80, 0xC0))
_CLOSING = {b"[": b"]", b"{": b"}"}


class Container(NamedTuple):
    """Where a list or an object that no window held ends, and how many entries it has."""

    end: int
    entries: int


class JsonText:
    """UTF-8 bytes of JSON, which may grow at their end. Places (``at``) count bytes from 0.

    ``end_of`` checks a value, and refuses what ``json.loads`` would; the others may be asked for what it checked.

    Args:
        data: the text so far.
        more: what follows it.
        name, line, column: the file, and the place from 1 at which ``data`` begins in it, for messages.
    """

    def __init__(
        self,
        data: bytearray,
        more: Iterable[bytes] = (),
        *,
        name: str | None = None,
        line: int = 1,
        column: int = 1,
    ) -> None:
        self.data = data
        self.containers: dict[int, Container] = {}
        """Those of the checked text that no window held, by the place of their bracket."""
        self._more: Iterator[bytes] = iter(more)
        self._levels = DEEP  # are no reason to look closer
        self._name, self._line, self._column = name, line, column

    # -- text -----------------------------------------------------------------------------------------------

    def grow(self) -> bool:
        """Append the next block; False at the end."""
        block = next(self._more, b"")
        self.data += block
        return bool(block)

    def rest(self, at: int) -> JsonText:
        """What begins at ``at``, as a text of its own; this one stays as it is for whoever holds a part of it."""
        line, column = self.line_and_column(at)
        more, self._more = self._more, iter(())
        return JsonText(self.data[at:], more, name=self._name, line=line, column=column)

    def line_and_column(self, at: int) -> tuple[int, int]:
        """From 1; columns count characters."""
        begin = self.data.rfind(b"\n", 0, at) + 1
        column = 1 if begin else self._column
        for piece in range(begin, at, WINDOW):
            column += len(self.data[piece : min(piece + WINDOW, at)].translate(None, _WITHIN_CHARACTER))
        return self._line + self.data.count(b"\n", 0, begin), column

    def after_blank(self, at: int) -> int:
        """Where the white space that may stand at ``at`` ends."""
        while True:
            blank = _BLANK.match(self.data, at)
            assert blank is not None  # it matches nothing, too
            at = blank.end()
            if at < len(self.data) or not self.grow():
                return at

    def window(self, at: int, size: int) -> Window:
        """The text from ``at`` on, ``size`` bytes or all there is, without a character that would be cut."""
        while len(self.data) <= at + size and self.grow():
            pass
        text, used = utf_8_decode(self.data[at : at + size], "surrogatepass", False)
        return Window(text, at, len(text) == used, len(self.data) <= at + size)

    def _refusal(self, message: str, at: int) -> InputError:
        line, column = self.line_and_column(at)
        return InputError(message, source=self._name, line=line, column=column)

    def _refuse(self, error: Exception, window: Window) -> None:
        """Raise what the decoder said of ``window``, unless its end is the reason."""
        if isinstance(error, StopIteration):
            error = json.JSONDecodeError("Expecting value", window.text, error.value)
        if isinstance(error, json.JSONDecodeError):
            if window.cuts(error):
                return
            raise self._refusal(f"is not JSON: {error.msg}", window.place(error.pos)) from None
        # NaN, a number of thousands of digits: where is not told
        message = "is nested too deeply" if isinstance(error, RecursionError) else f"is not JSON: {error}"
        line, _ = self.line_and_column(window.begin)
        raise InputError(message, source=self._name, line=line) from None

    def _check_depth(self, text: str, depth: int) -> None:
        """Raises RecursionError where ``text`` cannot be decoded, or not so deep within others."""
        levels = depth + text.count("[") + text.count("{")
        if levels > self._levels and self._levels == DEEP:
            self._levels = most_levels()
        if depth < levels > self._levels:
            around = depth + SPARE
            DECODER.decode("[" * around + text + "]" * around)

    # -- entries, a window at a time ------------------------------------------------------------------------

    def elements(self, at: int, depth: int = 0) -> tuple[list[Any], int, bool]:
        """The elements of a list from the one that begins at ``at`` on, as many as a window holds.

        Args:
            at: where it begins.
            depth: how many lists and objects are open around it.

        Returns:
            The elements; where the next one begins, or the list ends; which of both. No element: a window does not
            hold the next.

        Raises:
            InputError: it is malformed.
        """
        window = self.window(at, WINDOW)
        values, ready, closed = scalars(window.text)
        if not values:
            values, ready, closed = self._elements(window, depth, [], NO_COMMA)
        end = window.place(ready)
        return values, end if closed else self.after_blank(end), closed

    def rows(self, at: int) -> tuple[list[tuple[int, Any]], int, bool]:
        """As ``elements``, with the line of each, of a list that nothing holds."""
        window = self.window(at, WINDOW)
        line, _ = self.line_and_column(at)
        starts = [0]
        values, ready, closed = self._elements(window, 1, starts, UNFINISHED)
        rows = []
        for value, (former, start) in zip(values, itertools.pairwise(starts), strict=True):
            line += window.text.count("\n", former, start)
            rows.append((line, value))
        end = window.place(ready)
        return rows, end if closed else self.after_blank(end), closed

    def _elements(self, window: Window, depth: int, starts: list[int], missing: str) -> tuple[list[Any], int, bool]:
        """``elements`` by index, one by one; where each starts is added to ``starts``.

        ``missing``: what to say where neither a comma nor the end follows.
        """
        text = window.text
        values: list[Any] = []
        ready = 0
        shallow = 2 * (self._levels - depth)  # characters that have no more levels
        try:
            while True:
                value, end = scan_once(text, ready)
                if end - ready > shallow:
                    self._check_depth(text[ready:end], depth)
                sign = text[end : end + 1]
                if sign not in (",", "]"):
                    end = WHITESPACE.match(text, end).end()
                    sign = text[end : end + 1]
                    if sign not in (",", "]"):
                        raise json.JSONDecodeError(missing, text, end)
                values.append(value)
                starts.append(ready)
                if sign == "]":
                    return values, end + 1, True
                ready = end + 1
                if text[ready : ready + 1] in BLANKS:
                    ready = WHITESPACE.match(text, ready).end()
        except (ValueError, StopIteration, RecursionError) as error:
            if not values:  # else it is told when the next are asked for
                self._refuse(error, window)
        return values, ready, False

    def entries(self, at: int, depth: int = 0) -> tuple[list[tuple[str, int]], int, bool]:
        """The entries of an object from the one that begins at ``at`` on, as many as a window holds.

        Args and Raises: as of ``elements``.

        Returns:
            (key, where the entry begins) of each; where the next one begins, or the object ends; which of both.
        """
        window = self.window(at, WINDOW)
        text = window.text
        found: list[tuple[str, int]] = []
        shallow = 2 * (self._levels - depth)
        place, counted, ready, closed = at, 0, 0, False
        try:
            while not closed:
                key, begin = key_and_value(text, ready)
                _, end = scan_once(text, begin)
                if end - begin > shallow:
                    self._check_depth(text[begin:end], depth)
                sign = text[end : end + 1]
                if sign not in (",", "}"):
                    end = WHITESPACE.match(text, end).end()
                    sign = text[end : end + 1]
                    if sign not in (",", "}"):
                        raise json.JSONDecodeError(NO_COMMA, text, end)
                place += ready - counted if window.plain else len(text[counted:ready].encode("utf-8", "surrogatepass"))
                counted = ready
                found.append((key, place))
                closed = sign == "}"
                ready = end + 1 if closed else WHITESPACE.match(text, end + 1).end()
        except (ValueError, StopIteration, RecursionError) as error:
            if not found:
                self._refuse(error, window)
        end = window.place(ready)
        return found, end if closed else self.after_blank(end), closed

    def documents(self, at: int) -> tuple[list[tuple[int, Any]], int]:
        """The values that follow one another from ``at`` on, as many as a window holds, up to one that is a list.

        Returns:
            (line, value) of each; where the next begins. None: a window does not hold the next.

        Raises:
            InputError: one is malformed.
        """
        window = self.window(at, WINDOW)
        text = window.text
        line, _ = self.line_and_column(at)
        found: list[tuple[int, Any]] = []
        ready = 0
        try:
            while ready < len(text) and text[ready] != "[":
                value, end = scan_once(text, ready)
                if end == len(text) and not window.last:
                    break  # a number may go on
                found.append((line, value))
                after = WHITESPACE.match(text, end).end()
                line += text.count("\n", ready, after)
                ready = after
        except (ValueError, StopIteration, RecursionError) as error:
            if not found:
                self._refuse(error, window)
        return found, self.after_blank(window.place(ready))

    def key(self, at: int) -> tuple[str, int]:
        """(key, where its value begins) of the entry that begins at ``at``.

        Raises:
            InputError: there is none.
        """
        if self.data[at : at + 1] != b'"':
            raise self._refusal("is not JSON: Expecting property name enclosed in double quotes", at)
        key, end = self.string(at)
        end = self.after_blank(end)
        if self.data[end : end + 1] != b":":
            raise self._refusal("is not JSON: Expecting ':' delimiter", end)
        return key, self.after_blank(end + 1)

    def after(self, at: int, opening: bytes, missing: str = NO_COMMA) -> tuple[int, bool]:
        """Past the comma after an entry, or past the end of the list or object; which of both: True for its end.

        Raises:
            InputError: neither follows.
        """
        at = self.after_blank(at)
        sign = self.data[at : at + 1]
        if sign == b",":
            return self.after_blank(at + 1), False
        if sign == _CLOSING[opening]:
            return at + 1, True
        raise self._refusal(f"is not JSON: {missing}", at)

    # -- values ---------------------------------------------------------------------------------------------

    def check(self) -> int:
        """Where the one value that the text holds begins.

        Raises:
            InputError: it holds none, or more.
        """
        begin = self.after_blank(0)
        end = self.after_blank(self.end_of(begin))
        if end < len(self.data):
            raise self._refusal("is not JSON: Extra data", end)
        return begin

    def end_of(self, at: int) -> int:
        """Where the value that begins at ``at`` ends; notes the ``containers`` in it.

        Raises:
            InputError: it is not JSON, or nested too deeply.
        """
        opened: list[tuple[int, bytes]] = []
        counts: list[int] = []

        def enter(at: int) -> int:
            """Into the list or object at ``at``, past its bracket, or past another value."""
            sign = bytes(self.data[at : at + 1])
            if sign not in _CLOSING:
                end = self._string_end(at) if sign == b'"' else self.scalar(at)[1]
                return leave(end)
            if len(opened) >= self._levels:
                try:
                    self._check_depth("[]", len(opened))
                except RecursionError:
                    raise self._refusal("is nested too deeply", at) from None
            opened.append((at, sign))
            counts.append(0)
            inner = self.after_blank(at + 1)
            if self.data[inner : inner + 1] == _CLOSING[sign]:
                return leave(close(inner + 1))
            return inner

        def close(end: int) -> int:
            begin, _ = opened.pop()
            entries = counts.pop()
            if end - begin > WINDOW - _CHARACTER:
                self.containers[begin] = Container(end, entries)
            return end

        def leave(at: int) -> int:
            """From the end of a value to where the next entry begins."""
            while opened:
                counts[-1] += 1
                at, closed = self.after(at, opened[-1][1])
                if not closed:
                    break
                close(at)
            return at

        at = enter(at)
        step_over, patience = 0, 1
        while opened:
            is_list = opened[-1][1] == b"["
            if step_over:
                step_over -= 1
                at = enter(at if is_list else self.key(at)[1])
                continue
            begin = at
            found, at, closed = (self.elements if is_list else self.entries)(at, len(opened))
            counts[-1] += len(found)
            if closed:
                at = leave(close(at))
            elif at - begin > WINDOW // 8:
                patience = 1
            else:  # else a window would be decoded for each of many levels that all begin here
                step_over = patience = min(2 * patience, _MOST_STEPS)
        return at

    def skip(self, at: int) -> int:
        """Where a checked value ends."""
        known = self.containers.get(at)
        return self.end_of(at) if known is None else known.end

    def held(self, at: int) -> tuple[Any, int]:
        """(value, end) of a checked value at ``at`` that a window holds.

        Raises:
            InputError: there are too many calls open to decode it.
        """
        window = self.window(at, WINDOW)
        try:
            value, end = scan_once(window.text, 0)
        except (ValueError, StopIteration, RecursionError) as error:
            self._refuse(error, window)
            raise
        return value, window.place(end)

    def scalar(self, at: int) -> tuple[Any, int]:
        """(value, end) of the number or literal at ``at``.

        Raises:
            InputError: there is none.
        """
        end = at
        while True:
            match = _SCALAR.match(self.data, end)
            assert match is not None  # it matches nothing, too
            end = match.end()
            if end < len(self.data) or not self.grow():
                break
        window = Window(self.data[at:end].decode(), at, True, True)
        try:
            value, length = scan_once(window.text, 0)
        except (ValueError, StopIteration) as error:
            self._refuse(error, window)
            raise
        return value, at + length

    def string(self, at: int) -> tuple[str, int]:
        """(text, end) of the string whose quote is at ``at``.

        Raises:
            InputError: it is malformed.
        """
        text, end, closed = self._piece(at + 1, at)
        if closed:
            return text, end
        del text
        end = self._string_end(end, at)
        if self.data.find(b"\\", at, end) < 0:  # decoded where it stands: a text may be as long as the file
            with memoryview(self.data) as view, view[at + 1 : end - 1] as inner:
                return str(inner, "utf-8", "surrogatepass"), end
        whole, place, closed = bytearray(), at + 1, False
        while not closed:
            text, place, closed = self._piece(place, at)
            whole += text.encode("utf-8", "surrogatepass")
        return whole.decode("utf-8", "surrogatepass"), end

    def _string_end(self, at: int, quote: int | None = None) -> int:
        """Where the string ends, from its quote on, or from a place within it."""
        begin = at if quote is None else quote
        at, closed = at + (quote is None), False
        while not closed:
            _, at, closed = self._piece(at, begin)
        return at

    def _piece(self, at: int, quote: int) -> tuple[str, int, bool]:
        """(text, where it goes on, whether it ends there) of a piece of the string that began at ``quote``."""
        window = self.window(at, max(WINDOW, 4 * TOKEN))
        cut = len(window.text) if window.last else whole_escapes(window.text)
        piece = window.text if window.last else window.text[:cut] + '"'
        try:
            text, end = scanstring(piece, 0, True)
        except json.JSONDecodeError as error:
            place = quote if error.msg.startswith("Unterminated") else window.place(error.pos)
            raise self._refusal(f"is not JSON: {error.msg}", place) from None
        closed = window.last or end <= cut
        return text, window.place(end if closed else cut), closed
