"""YAML as a stream of events: of a document of any size nothing is held but what its reader keeps.

PyYAML's own way, a graph of nodes of the whole document, takes one to two hundred times the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import IO, Any

import yaml
from yaml.reader import Reader, ReaderError

from kvplan.errors import InputError

Lines = Callable[[], Iterable[tuple[int, str]]]
"""(number from 1, text) of each line; raises InputError, with its place, for a byte that is not UTF-8."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BLOCK = 1 << 16
_TAG_DIRECTIVE = re.compile(rb"^%TAG", re.MULTILINE)
_MOST_TAG_DIRECTIVES = 64
"""Each is compared with all before it: a few megabytes of them take hours."""

MOST_NESTED = 100
"""Lists and mappings within one another: each makes every token within take longer, and Python's stack deeper."""


class YamlEvents:
    """The events of a text with one document. A context: it frees the parser.

    Args:
        stream: UTF-8 bytes, read as they are needed.
        source: the file's name, for messages.
        lines: the same text line by line, asked for only to say where it is no text.
    """

    def __init__(self, stream: IO[bytes], source: str, lines: Lines) -> None:
        self.source = source
        self._lines = lines
        try:
            self._loader: Any = _LOADER(_Guarded(stream, source))
        except (yaml.YAMLError, ValueError) as error:  # the pure parser reads at once
            raise self._refusal(error) from None

    def __enter__(self) -> YamlEvents:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loader.dispose()

    def next(self) -> Any:
        """The next event.

        Raises:
            InputError: not YAML, not UTF-8; with its line.
        """
        try:
            return self._loader.get_event()
        except (yaml.YAMLError, ValueError) as error:
            raise self._refusal(error) from None

    def first(self) -> Any:
        """The event that begins the document's root, or None for an empty text."""
        self.next()  # the stream's own
        if isinstance(self.next(), yaml.StreamEndEvent):
            return None
        return self.next()

    def end(self) -> None:
        """The root is read; refuses a second document."""
        self.next()  # the document's end
        event = self.next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.error(event, "is not YAML: it holds more than one document")

    def skip(self, event: Any) -> None:
        """Pass over all of what ``event`` begins, whatever its size; an alias in it is refused."""
        depth = 0
        while True:
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MOST_NESTED:
                    raise self.nested(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.AliasEvent):
                raise self.alias(event)
            if depth == 0:
                return
            event = self.next()

    def error(self, event: Any, message: str, **more: Any) -> InputError:
        """The error to raise about what ``event`` begins."""
        mark = event.start_mark
        return InputError(message, source=self.source, line=mark.line + 1, column=mark.column + 1, **more)

    def alias(self, event: Any) -> InputError:
        """The error to raise where aliases, a few of which can stand for any number of values, are not followed."""
        return self.error(event, "has an alias, which kvplan does not follow")

    def nested(self, event: Any) -> InputError:
        """The error to raise beyond ``MOST_NESTED``."""
        return self.error(event, "is nested too deeply")

    def _refusal(self, error: Exception) -> InputError:
        if isinstance(error, yaml.MarkedYAMLError):
            mark = error.problem_mark or error.context_mark
            line, column = (1, None) if mark is None else (mark.line + 1, mark.column + 1)
            message = f"is not YAML: {error.problem or error.context}"
            return InputError(message, source=self.source, line=line, column=column)
        if isinstance(error, (ReaderError, UnicodeError)):
            for line, text in self._lines():
                if found := Reader.NON_PRINTABLE.search(text):
                    column = found.start() + 1
                    message = "is not YAML: control characters are not allowed"
                    return InputError(message, source=self.source, line=line, column=column)
        return InputError(f"is not YAML: {str(error).splitlines()[0]}", source=self.source, line=1)


class _Guarded:
    """The stream, as the parsers read it."""

    def __init__(self, stream: IO[bytes], source: str) -> None:
        self._stream = stream
        self._source = source
        self._line = 1
        self._directives = 0

    def read(self, size: int = _BLOCK, /) -> bytes:
        block = self._stream.read(max(size, _BLOCK))
        for found in _TAG_DIRECTIVE.finditer(block):
            self._directives += 1
            if self._directives > _MOST_TAG_DIRECTIVES:
                line = self._line + block.count(b"\n", 0, found.start())
                raise InputError(
                    f"has more than {_MOST_TAG_DIRECTIVES} %TAG directives", source=self._source, line=line
                )
        self._line += block.count(b"\n")
        return block
