"""One measurement at a time: a point of the plan on a real engine."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch

from kvplan.calibration.made_steps import MadeSteps, Row
from kvplan.calibration.metered import Metered
from kvplan.calibration.plan import Point, traffic
from kvplan.calibration.stopwatch import Stopwatch, TimedAttention, clock_of
from kvplan.core.replica import Replica, Workload
from kvplan.engine.attention_torch import TorchAttention
from kvplan.engine.batch import StepBatch, on_device
from kvplan.engine.decoder import Attention, Decoder
from kvplan.engine.engine import Engine
from kvplan.engine.loop import run_steps

Sample = dict[str, float]
"""Seconds by what was measured; see `Meter.sample`."""
MOST_REPEATS, REPEAT_S = 5, 0.02
HOST_STEPS = 8
"""Decode steps in one measurement of the host."""


class Meter:
    """Measures points on an engine.

    Args:
        longest: tokens of the longest context that will be asked for.
    """

    def __init__(self, engine: Engine, longest: int, seed: int = 0, clock: str = "wall") -> None:
        self._engine = engine
        self._longest, self._seed = longest, seed
        self._clock = clock
        self._watch = Stopwatch(engine.device, clock)
        self._steps = MadeSteps(engine.settings, longest, seed)
        self._random = np.random.default_rng(seed)
        self._head = Decoder(
            replace(engine.decoder.shape, num_hidden_layers=0, windows=()), replace(engine.decoder.weights, layers=())
        )

    def on(self, engine: Engine) -> Meter:
        """The same measurements on another form of this engine (`Engine.recut`)."""
        meter = copy(self)
        meter._engine = engine
        meter._steps = MadeSteps(engine.settings, self._longest, self._seed)
        return meter

    def can(self, point: Point) -> bool:
        """Whether the deployment could ever run it."""
        if point.kind in ("block_copy", "swap_out", "swap_in"):
            held = self._engine.pool.shape.num_blocks - 1
            host = self._engine.pool.shape.host_blocks
            return point.at[0] <= (held // 2 if point.kind == "block_copy" else min(held, host))
        if point.kind == "host":
            rows, prompt = point.at
            return self._steps.fits([(prompt + HOST_STEPS, 1)] * rows)
        if point.kind == "traffic":
            return True
        if point.kind == "head":
            return point.at[0] <= self._engine.settings.max_num_seqs
        return all(self._steps.fits(rows) for rows in self._batches(point).values())

    def sample(self, point: Point) -> Sample:
        """Measures it once, on inputs drawn anew, after one run that does not count.

        Returns:
            decode, prefill, mixed, linear: ``attention`` and ``linear`` of a step, all layers; skew: attention as
            ``seconds``, and had all rows the mean or the longest context, ``at_mean`` and ``at_longest``; host: whole
            ``prefill`` and ``decode`` steps; traffic: ``seconds`` of all its steps; else ``seconds``.
        """
        if point.kind == "host":
            return self._whole_steps(*point.at)
        if point.kind == "traffic":
            requests, draw = point.at
            seconds, _ = self._run(traffic(requests, draw, self._longest))
            return {"seconds": sum(seconds)}
        if point.kind == "head":
            return {"seconds": self._timed(lambda: self._logits(point.at[0]))}
        if point.kind in ("block_copy", "swap_out", "swap_in"):
            return {"seconds": self._timed(self._move(point))}
        batches = self._batches(point)
        found = {name: self._forward(rows) for name, rows in batches.items()}
        if point.kind == "skew":
            return {name: attention for name, (attention, _) in found.items()}
        attention, linear = found["seconds"]
        return {"attention": attention, "linear": linear}

    def run_largest(self) -> None:
        """The largest prefill that the deployment can run, with the head of every sequence: its activations peak."""
        settings = self._engine.settings
        tokens = min(settings.max_num_batched_tokens, self._longest)
        if self._steps.fits([(0, tokens)]):
            self._forward([(0, tokens)])
        self._logits(settings.max_num_seqs)

    def _batches(self, point: Point) -> dict[str, list[Row]]:
        if point.kind == "linear":
            whole, rest = divmod(point.at[0], self._longest)
            return {"seconds": [(0, self._longest)] * whole + [(0, rest)] * (rest > 0)}
        return _batches(point)

    def _forward(self, rows: list[Row]) -> tuple[float, float]:
        """(seconds of attention, what it prepares on the host included; seconds of all else in the layers)."""
        batch = self._steps.batch(rows)
        ids = self._random.integers(self._engine.decoder.shape.vocab_size, size=int(batch.starts[-1]))
        token_ids, positions, sampled = on_device(batch, ids, self._engine.device)
        watch = self._watch

        def run() -> tuple[float, float]:
            watch.cool()
            begin = watch.mark()
            attention = TimedAttention(self._attention(batch), watch)
            prepared = watch.mark()
            self._engine.decoder.forward(token_ids, positions, sampled[:0], attention)
            end = watch.mark()
            watch.wait()
            calls = attention.seconds()
            return watch.seconds(begin, prepared) + calls, watch.seconds(prepared, end) - calls

        attention_s, linear_s = zip(*_repeated(run), strict=True)
        return median(attention_s), median(linear_s)

    def _attention(self, batch: StepBatch) -> Attention:
        engine = self._engine
        if engine.backend.name == "torch":
            return TorchAttention(engine.pool, batch)
        from kvplan.engine.attention_triton import TritonAttention  # triton: not on every machine

        shape = engine.decoder.shape
        return TritonAttention(
            engine.pool, batch, query_heads=shape.num_attention_heads, query_dtype=engine.decoder.dtype
        )

    def _logits(self, samples: int) -> Any:
        device = self._engine.device
        ids = torch.randint(self._engine.decoder.shape.vocab_size, (samples,), device=device)
        positions = torch.arange(samples, device=device)
        logits = self._head.forward(ids, positions, positions, _no_attention)
        return logits.argmax(-1).cpu()

    def _move(self, point: Point) -> Callable[[], None]:
        pool, count = self._engine.pool, point.at[0]
        blocks = self._random.permutation(pool.shape.num_blocks - 1).astype(np.int32) + 1
        if point.kind == "block_copy":
            return lambda: pool.copy(blocks[: 2 * count].reshape(-1, 2))
        host = self._random.permutation(pool.shape.host_blocks).astype(np.int32)[:count] + 1
        pairs = np.column_stack([blocks[:count], host])
        return (
            (lambda: pool.swap_out(pairs))
            if point.kind == "swap_out"
            else (lambda: pool.swap_in(pairs[:, ::-1].copy()))
        )

    def _timed(self, run: Callable[[], Any]) -> float:
        watch = self._watch

        def once() -> tuple[float]:
            watch.cool()
            begin = watch.mark()
            run()
            end = watch.mark()
            watch.wait()
            return (watch.seconds(begin, end),)

        return median(seconds for (seconds,) in _repeated(once))

    def _whole_steps(self, rows: int, prompt: int) -> Sample:
        """Median seconds of the decode steps of equal requests, and of the step that computes their prompts; neither
        where they never run all at once."""
        work = Workload(np.zeros(rows), np.full(rows, prompt, np.int64), np.full(rows, HOST_STEPS + 1, np.int64))
        seconds, loads = self._run(work)
        decode = [s for s, load in zip(seconds, loads, strict=True) if load["decode_rows"][0] == rows]
        found = {}
        if len(decode) > 1:  # else the layout reserves too much for so many at once
            found["decode"] = median(decode[1:])  # the first one finds another batch's inputs in the cache
        if loads[0]["prefill_rows"][0] == rows:
            found["prefill"] = seconds[0]
        return found

    def _run(self, work: Workload) -> tuple[list[float], list[Any]]:
        """(seconds, load) of every step of a workload, as the engine runs them."""
        metered = Metered(self._engine.executor(work), clock_of(self._clock, self._engine.device))
        return run_steps(Replica(self._engine.settings, work), metered), metered.loads


def _repeated(run: Callable[[], tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Once without looking, then once; short ones up to `MOST_REPEATS` times, for `REPEAT_S` in all."""
    run()
    found = [run()]
    while len(found) < MOST_REPEATS and sum(sum(times) for times in found) < REPEAT_S:
        found.append(run())
    return found


def _batches(point: Point) -> dict[str, list[Row]]:
    """The batches that a point of attention compares, the one that it is about as ``seconds``."""
    if point.kind == "decode":
        rows, context = point.at
        return {"seconds": [(context - 1, 1)] * rows}
    if point.kind == "prefill":
        tokens, prior = point.at
        return {"seconds": [(prior, tokens)]}
    if point.kind == "mixed":
        tokens, prior, rows, context = point.at
        return {"seconds": [(context - 1, 1)] * rows + [(prior, tokens)]}
    rows, long_rows, short, long = point.at
    mean = (long_rows * long + (rows - long_rows) * short) // rows
    return {
        "at_mean": [(mean - 1, 1)] * rows,
        "at_longest": [(long - 1, 1)] * rows,
        "seconds": [(short - 1, 1)] * (rows - long_rows) + [(long - 1, 1)] * long_rows,
    }


def _no_attention(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    raise AssertionError("a decoder without layers attends to nothing")
