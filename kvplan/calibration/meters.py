"""A meter for each form of the KV cache, all on one model in one memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kvplan.calibration.meter import Meter, Sample
from kvplan.calibration.plan import Point
from kvplan.engine.engine import Engine
from kvplan.engine.pool import CACHE_DTYPES
from kvplan.errors import InputError
from kvplan.timing.profile import BlockForm


class Meters:
    """Measures points of every form.

    Args:
        own: the engine's meter as it is.
    """

    def __init__(self, engine: Engine, own: Meter, forms: Iterable[BlockForm]) -> None:
        self._pool = engine.pool
        self._own = own
        self._of: dict[BlockForm | None, Meter] = {None: own}
        self._dtypes: dict[BlockForm | None, torch.dtype] = {None: engine.pool.shape.dtype}
        self._written_as = engine.pool.shape.dtype
        for form in forms:
            dtype = self._dtypes[form] = getattr(torch, form.kv_cache_dtype)
            try:
                recut = engine.recut(form.block_size, dtype)
            except InputError:  # the pool is smaller than a block of this form
                continue
            self._of[form] = own.on(recut)

    def can(self, point: Point) -> bool:
        """Whether the deployment could ever run it."""
        return point.form in self._of and self._of[point.form].can(point)

    def sample(self, point: Point) -> Sample:
        """As `Meter.sample`."""
        dtype = self._dtypes[point.form]
        if dtype != self._written_as:
            # One type's values may be denormal as another's, at which some CPUs are slow.
            self._pool.tensor.view(torch.uint8).zero_()
            self._written_as = dtype
        return self._of[point.form].sample(point)


def forms_of(own: BlockForm, block_sizes: Iterable[int], kv_cache_dtypes: Iterable[str]) -> list[BlockForm]:
    """Every size with every dtype, the engine's own among them, but for what it has already.

    Args:
        kv_cache_dtypes: by the names of `pool.CACHE_DTYPES`.

    Raises:
        InputError: a size is no block size, or the engine has no such cache.
    """
    dtypes = [own.kv_cache_dtype]
    for name in kv_cache_dtypes:
        if name not in CACHE_DTYPES:
            hint = "one of " + ", ".join(CACHE_DTYPES)
            raise InputError("the engine has no such cache", field="--kv-cache-dtypes", value=name, hint=hint)
        dtypes.append(str(CACHE_DTYPES[name]).removeprefix("torch."))
    sizes = [own.block_size, *block_sizes]
    for size in sizes:
        if not 1 <= size <= 1 << 14 or size & (size - 1):
            raise InputError("is no block size", field="--block-sizes", value=size, hint="powers of two")
    found = {BlockForm(size, dtype) for size in sizes for dtype in dtypes}
    return sorted(found - {own})
