"""The requests of a scenario: a tuple, or a list packed as it stands in the file, checked once and unpacked singly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from pydantic import GetCoreSchemaHandler, SerializerFunctionWrapHandler, ValidationError, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from kvplan.scenario.packed import PackedList
from kvplan.scenario.traffic import Request

_MOST_FINDINGS = 100
"""Each takes a kilobyte. Who has so many mends the first."""


class Requests(Sequence[Request]):
    """Validated by pydantic: a list or tuple of requests, or a `PackedList` of mappings."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> Request: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Request, ...]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return tuple(map(Request.model_validate, self._items[place]))
        return Request.model_validate(self._items[place])

    def __iter__(self) -> Iterator[Request]:
        return map(Request.model_validate, self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return self is other or all(mine == its for mine, its in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = core_schema.tuple_variable_schema(handler.generate_schema(Request), strict=False)
        return core_schema.no_info_wrap_validator_function(
            cls._validated,
            inner,
            serialization=core_schema.wrap_serializer_function_ser_schema(_serialized, schema=inner),
        )

    @classmethod
    def _validated(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Requests:
        if isinstance(value, Requests):
            return value
        if not isinstance(value, PackedList):
            return cls(handler(value))
        findings: list[InitErrorDetails] = []
        for place, item in enumerate(value):
            try:
                Request.model_validate(item)
            except ValidationError as error:
                findings += [_finding(place, detail) for detail in error.errors(include_url=False)]
                if len(findings) >= _MOST_FINDINGS:
                    break
        if findings:
            raise ValidationError.from_exception_data("requests", findings)
        return cls(value)


def _finding(place: int, detail: Any) -> InitErrorDetails:
    kind: Any = detail["type"]
    return {"type": kind, "loc": (place, *detail["loc"]), "input": detail["input"], "ctx": detail.get("ctx", {})}


def _serialized(value: Requests, handler: SerializerFunctionWrapHandler) -> Any:
    return handler(tuple(value))
