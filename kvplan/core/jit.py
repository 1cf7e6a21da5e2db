"""Compiling the core, with a cache on disk that cannot go stale.

Numba's own cache looks only at the file in which a function stands, so an edit to a helper in another file goes
unnoticed. Here the cache folder is named after the text of every file of `kvplan.core` and Numba's version: any
edit, any other Numba, opens a new folder.
"""

from __future__ import annotations

import gc
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.registry import CPUDispatcher


def _fingerprint() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_root() -> Path:
    """The user's cache folder, or the temporary folder where the former cannot be written."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = base / "kvplan" / "numba"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir()) / "kvplan-numba"
    return root if os.access(root, os.W_OK) else Path(tempfile.gettempdir()) / "kvplan-numba"


CACHE_DIR = str(_cache_root() / _fingerprint())


class CoreDispatcher(CPUDispatcher):
    """Compiles without what the core has no use for, which costs a first start a fifth less time.

    LLVM's vectorizers (the loops follow pointers), and Python's cycle collector, which would walk through millions of
    Numba's own objects again and again. LLVM's level 1 gives code that runs within a tenth of level 3's.
    """

    def compile(self, sig: Any) -> Any:
        former = numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE, numba.config.OPT
        numba.config.LOOP_VECTORIZE = numba.config.SLP_VECTORIZE = 0
        numba.config.OPT = type(former[2])(1)
        collecting = gc.isenabled()
        gc.disable()
        try:
            return super().compile(sig)
        finally:
            numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE, numba.config.OPT = former
            if collecting:
                gc.enable()


class InnerDispatcher(CoreDispatcher):
    """What only compiled code can call. Not cached by itself: its code stands in that of its callers."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self.py_func.__name__} is called by compiled code only; wrap it with `compiled`")


def compiled(function: Callable[..., Any]) -> CoreDispatcher:
    """`numba.njit` with the cache above, for what Python calls. Integer overflow wraps, division raises nothing.

    Reference counting is left out (`_nrt`): the core allocates nothing while it runs (an allocation would not
    compile), and passing arrays from function to function costs no atomic increments.
    """
    return _compile(CoreDispatcher, function)


def inner(function: Callable[..., Any]) -> CoreDispatcher:
    """As `compiled`, for what only compiled code calls: without the wrappers for Python and C, which take a tenth
    of the time to compile. A call from Python is a TypeError."""
    return _compile(InnerDispatcher, function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compile(kind: type[CoreDispatcher], function: Callable[..., Any], **options: bool) -> CoreDispatcher:
    targetoptions = {"nopython": True, "boundscheck": None, "error_model": "numpy", "_nrt": False, **options}
    dispatcher = kind(py_func=function, targetoptions=targetoptions)
    if kind is InnerDispatcher:
        return dispatcher
    former = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = CACHE_DIR  # read here; other packages keep their own folder
    try:
        dispatcher.enable_caching()
    finally:
        numba.config.CACHE_DIR = former
    return dispatcher
