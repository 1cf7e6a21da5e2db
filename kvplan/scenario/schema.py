"""What a run is: the whole of a scenario."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PrivateAttr, ValidationError

from kvplan.errors import InputError, KvplanError
from kvplan.scenario.deployment import Cache, Engine, Parallel, Scheduler, Slo, Timing
from kvplan.scenario.explain import explained
from kvplan.scenario.leaves import Leaf, leaves_of
from kvplan.scenario.merge import merged
from kvplan.scenario.nodes import Key
from kvplan.scenario.not_yet import NOT_YET
from kvplan.scenario.origin import Origin, steps
from kvplan.scenario.requests import Requests
from kvplan.scenario.rules import check_rules
from kvplan.scenario.section import Reference, Section
from kvplan.scenario.traffic import Workload

if TYPE_CHECKING:
    from kvplan.trace.trace import Trace


class Variant(Section):
    """A run beside the base, on the same requests: what it says replaces what the base says, leaf by leaf."""

    name: str = Field(min_length=1, description="name of the run in the results")
    model: Reference | None = Field(None, description="see the base's")
    gpu: Reference | None = Field(None, description="see the base's")
    parallel: Parallel | None = None
    cache: Cache | None = None
    scheduler: Scheduler | None = None
    timing: Timing | None = None
    engine: Engine | None = None
    slo: Slo | None = None


class Scenario(Section):
    """One deployment, the requests that it gets, and what to compare it with.

    Built by `load_scenario` (a file and flags) or `Scenario.build` (a mapping).
    """

    name: str = Field("base", min_length=1, description="name of the base run in the results")
    model: Reference = Field(
        description="a name of the catalogue, the path of a config.json, or a mapping of config.json's keys"
    )
    gpu: Reference = Field(description="a name of the catalogue, or a mapping of its facts")
    parallel: Parallel = Field(Parallel(), description="GPUs a deployment takes")
    cache: Cache = Field(Cache(), description="the KV cache")
    scheduler: Scheduler = Field(Scheduler(), description="the scheduler")
    timing: Timing = Field(Timing(roofline={}), description="how long a step lasts")
    engine: Engine = Field(Engine(), description="the engine it stands for")
    slo: Slo = Field(Slo(), description="what the service promises")
    requests: Requests | None = Field(None, description="the requests, one by one")
    workload: Workload | None = Field(None, description="the requests, from a trace or generated")
    variants: Annotated[tuple[Variant, ...], Field(strict=False)] = Field(
        (), description="further runs, side by side with the base"
    )
    sweep: dict[str, list[Any]] = Field(
        {}, description="for `kvplan sweep`: the values to try, by key: {cache.block_size: [1, 16, 128]}"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="of all that is drawn at random")

    _origin: Origin = PrivateAttr(default_factory=Origin)
    _traces: list[Trace] = PrivateAttr(default_factory=list)
    """The trace once it is read: one list, shared by the runs of a scenario."""

    @classmethod
    def leaves(cls) -> tuple[Leaf, ...]:
        """Every key that is a command-line option too."""
        return leaves_of(cls)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """JSON Schema of what `load_scenario` reads; each leaf's ``description`` ends with its flag."""
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **cls.model_json_schema()}
        for leaf in cls.leaves():
            section, _, name = leaf.key.rpartition(".")
            home = schema["$defs"][section.capitalize()] if section else schema
            place = home["properties"][name]
            place["description"] = f"{leaf.description} ({leaf.flag})"
        return schema

    @classmethod
    def build(cls, mapping: Any, origin: Origin | None = None) -> Scenario:
        """Validate a mapping with the keys of this class.

        Raises:
            InputError: an unknown key, a bad value, a bad combination; with its place, as far as known.
        """
        origin = origin or Origin()
        scenario = _validated(mapping, origin)
        check_rules(scenario)
        for _, run in scenario._runs():
            check_rules(run)
        return scenario

    def runs(self) -> list[tuple[str, Scenario]]:
        """The runs to simulate, base first, each with its name; no variants and no sweep left in them.

        Raises:
            InputError: a key whose machinery this release does not have (`not_yet.NOT_YET`).
        """
        runs = self._runs()
        for _, run in [("", self), *runs]:
            for key in NOT_YET:
                key.refuse(run)
        return runs

    def _runs(self) -> list[tuple[str, Scenario]]:
        base = self.model_copy(update={"variants": (), "sweep": {}})
        deployment = self.model_dump(exclude_unset=True, exclude={"name", "requests", "workload", "variants", "sweep"})
        runs = [(self.name, base)]
        for place, variant in enumerate(self.variants):
            origin = self._origin.for_variant(place)
            run = _validated(merged(deployment, variant.model_dump(exclude_unset=True)), origin)
            run = run.model_copy(update={"requests": self.requests, "workload": self.workload})
            run._origin, run._traces = origin, self._traces
            runs.append((variant.name, run))
        return runs

    def trace(self) -> Trace:
        """The requests in columns. Read once; the runs of one scenario share it.

        Raises:
            InputError: the trace cannot be read; with its place where the scenario itself is at fault.
        """
        if not self._traces:
            self._traces.append(self._read_trace())
        return self._traces[0]

    def _read_trace(self) -> Trace:
        if self.requests is None and self.workload is None:
            raise self.error(
                "requests",
                "nothing is asked of the model",
                hint="add requests, or workload: {file: ...} or {synthetic: ...}",
            )
        from kvplan.trace import inline_trace, read_trace, synthesize  # slow to import

        if self.requests is not None:
            document = self._origin.document
            return inline_trace(
                (request.model_dump(exclude_none=True) for request in self.requests),
                source=document.source if document else "<python>",
                lines=self._origin.lines("requests", len(self.requests)),
            )
        assert self.workload is not None
        if self.workload.file is not None:
            options = self.workload.model_dump(exclude={"file", "synthetic"})
            return read_trace(self.path(self.workload.file), **options, seed=self.seed)
        assert self.workload.synthetic is not None
        try:
            return synthesize({"seed": self.seed, **self.workload.synthetic})
        except InputError as error:
            raise self.located(error, under="workload") from error

    def path(self, text: str) -> Path:
        """A path as it stands in the scenario, made relative to the working folder."""
        return self._origin.folder / text

    @property
    def model_source(self) -> str | Path | dict[str, Any]:
        """What `kvplan.catalog.load_model` takes: a path where ``model`` names a file, else ``model``."""
        if not isinstance(self.model, str):
            return self.model
        path = self.path(self.model)
        if path.is_dir():
            path = path / "config.json"
        return path if path.is_file() or self.model.endswith(".json") else self.model

    @property
    def profile_path(self) -> Path | None:
        """The file of ``timing: {profile: FILE}``."""
        return None if self.timing.profile is None else self.path(self.timing.profile)

    @property
    def memory_overrides_path(self) -> Path | None:
        """The file of ``engine: {memory_overrides: FILE}``."""
        return None if self.engine.memory_overrides is None else self.path(self.engine.memory_overrides)

    def error(
        self,
        key: str | tuple[Key, ...],
        message: str,
        *,
        at_key: bool = False,
        hint: str | None = None,
        **value: Any,
    ) -> InputError:
        """An `InputError` about ``key``, with the flag or the line that it came from.

        Args:
            key: ``"cache.block_size"`` or, through lists, ``("variants", 0, "name")``.
            at_key: point at the key, not at its value.
            value: ``value=...`` where it should be shown.
        """
        path = steps(key) if isinstance(key, str) else key
        return self._origin.error(path, message, at_key=at_key, hint=hint, **value)

    def located(self, error: KvplanError, *, under: str = "") -> KvplanError:
        """``error``, with the place of its ``field`` in this scenario where it has none.

        The field is a key of the section ``under``; without one, a whole key or the name of a leaf alone, as the
        flag bears it (``block_size``). An error about something else comes back as it is.
        """
        if error.field is None or error.line is not None or error.source is not None:
            return error
        path = steps(f"{under}.{error.field}" if under else error.field)
        if path[0] not in type(self).model_fields:
            homes = [leaf.key for leaf in self.leaves() if leaf.key.rpartition(".")[2] == path[0]]
            if not homes:
                return error
            path = (*steps(homes[0]), *path[1:])
        value: dict[str, Any] = {"value": error.value} if error.has_value else {}
        return self._origin.error(path, error.message, hint=error.hint, **value)

    def to_mapping(self, *, relative_to: Path | None = None) -> dict[str, Any]:
        """Everything, defaults included, in JSON's types; `Scenario.build` accepts it again.

        Args:
            relative_to: the folder that the mapping will lie in: relative paths are written from there.
                By default they stay as they were given.
        """
        mapping = self.model_dump(mode="json", exclude={"requests", "workload", "variants", "slo"})
        mapping["slo"] = self.slo.model_dump(mode="json", exclude_none=True)
        if self.requests is not None:
            mapping["requests"] = [r.model_dump(mode="json", exclude_defaults=True) for r in self.requests]
        if self.workload is not None:
            mapping["workload"] = self.workload.model_dump(mode="json", exclude_defaults=True)
        mapping["variants"] = [v.model_dump(mode="json", exclude_unset=True) for v in self.variants]
        if relative_to is not None:
            self._rebase(mapping, relative_to)
        return {key: value for key, value in mapping.items() if value is not None and value not in ({}, [])}

    def _rebase(self, mapping: dict[str, Any], folder: Path) -> None:
        def moved(text: str) -> str:
            return text if Path(text).is_absolute() else Path(os.path.relpath(self.path(text), folder)).as_posix()

        for part in [mapping, *mapping["variants"]]:
            if isinstance(model := part.get("model"), str) and self.path(model).exists():
                part["model"] = moved(model)
            if isinstance(timing := part.get("timing"), dict) and "profile" in timing:
                timing["profile"] = moved(timing["profile"])
            if isinstance(engine := part.get("engine"), dict) and engine.get("memory_overrides"):
                engine["memory_overrides"] = moved(engine["memory_overrides"])
        if "file" in mapping.get("workload", {}):
            mapping["workload"]["file"] = moved(mapping["workload"]["file"])


def _validated(mapping: Any, origin: Origin) -> Scenario:
    try:
        scenario = Scenario.model_validate(mapping)
    except ValidationError as error:
        raise explained(error, Scenario, origin) from error
    scenario._origin = origin
    return scenario
