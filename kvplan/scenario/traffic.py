"""The sections of a scenario that say what is asked of the model: requests told one by one, or a workload."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from kvplan.scenario.section import Count, FreeMapping, Section


def _label(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Label = Annotated[str, BeforeValidator(_label, json_schema_input_type=str | int)]
"""A name; a whole number is one too."""


Place = Annotated[int, Field(ge=0, lt=2**62)]
"""A source of tokens, or a place in one: the trace adds a length to it, within 64 bits."""

Segment = Annotated[tuple[Place, Place, Count], Field(strict=False)]


class Prefix(Section):
    """The first tokens of a prompt, equal to those of every other prefix of the same id."""

    id: Label = Field(description="equal ids share their first tokens")
    tokens: Count = Field(description="length of the prefix, tokens")


class Request(Section):
    """One request."""

    id: Label | None = Field(None, description="its name in the results; by default its place, from 0")
    arrival: float = Field(0.0, ge=0.0, description="seconds from the start")
    prompt: Count = Field(description="prompt tokens")
    output: Count = Field(description="tokens it will generate")
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="smaller runs first, under scheduling_policy priority")
    prefix: Prefix | None = Field(None, description="what its prompt begins with")
    session: Label | None = Field(None, description="a later turn of a session begins with all of the former turn")
    n: Count = Field(1, description="parallel samples")
    beam_width: int = Field(0, ge=0, description="beams; 0: no beam search")
    content: Annotated[tuple[Segment, ...], Field(strict=False)] | None = Field(
        None,
        description="in place of prefix, token for token: segments [source, start, tokens] of which the prompt"
        " is made from its beginning; the token at place i of a source is the same in every request (written by"
        " `kvplan trace convert --to yaml`; for all requests or for none)",
    )
    output_content: Place | Annotated[tuple[Place, Place], Field(strict=False)] | None = Field(
        None,
        description="with content: the source that a later request's content calls this one's output by, or"
        " [source, start] where it begins within one",
    )

    @model_validator(mode="after")
    def _content_tells_all(self) -> Request:
        if self.content is None:
            if self.output_content is not None:
                raise ValueError("output_content goes with content")
            return self
        if self.prefix is not None:
            raise ValueError("content goes with no prefix: it tells all that is shared")
        if sum(tokens for _, _, tokens in self.content) > self.prompt:
            raise ValueError("content is longer than the prompt")
        return self


class Workload(Section):
    """A trace from a file, or a generated one."""

    file: str | None = Field(None, description="a trace file, relative to the scenario; any format kvplan reads")
    synthetic: FreeMapping | None = Field(None, description="how lengths, arrivals and prefixes are drawn")
    format: str | None = Field(None, description="the file's format, where it should not be detected")
    time_unit: Literal["s", "ms", "us", "ns"] | None = Field(
        None, description="unit of the file's arrival column, where it should not be detected"
    )
    columns: dict[str, str] | None = Field(
        None, description="what the file calls the columns arrival, prompt and output: {arrival: ts}"
    )
    on_bad_row: Literal["error", "skip", "report"] = Field("error", description="what to do with a bad row")
    limit: Count | None = Field(None, description="read no more than so many requests")
    output_tokens: Count | None = Field(
        None, description="tokens of an answer, for a file that does not say how long answers are"
    )
    block_size: Count | None = Field(None, description="tokens in a block of the file's hash ids")
    tokenizer: str | None = Field(None, description="a tokenizer's folder, file or name, for a file that holds text")

    @model_validator(mode="after")
    def _one_source(self) -> Workload:
        if (self.file is None) == (self.synthetic is None):
            raise ValueError("takes either file or synthetic")
        if self.synthetic is not None:
            for name, field in type(self).model_fields.items():
                if name != "synthetic" and getattr(self, name) != field.default:
                    raise ValueError(f"{name} goes with file, not with synthetic")
        return self
