"""What commands that run the engine do first."""

from __future__ import annotations

from kvplan.errors import KvplanError


def require_torch(threads: int | None) -> None:
    """Loads torch, to run on so many CPU threads.

    Raises:
        KvplanError: torch is not installed; says how to get it.
    """
    try:
        import torch
    except ImportError:
        raise KvplanError("the engine needs torch", hint="pip install 'kvplan[engine]'") from None
    if threads is not None:
        torch.set_num_threads(threads)
