"""A folder of safetensors files: one, or shards with an index."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from kvplan.errors import InputError


class Checkpoint:
    """Tensors by name, read one at a time.

    Raises:
        InputError: the folder has no safetensors files, or one of them is damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.folder = Path(folder)
        paths = sorted(self.folder.glob("*.safetensors")) if self.folder.is_dir() else []
        if not paths:
            raise InputError("has no *.safetensors file", field="--weights", value=str(folder))
        self._files: list[Any] = []
        self._holder: dict[str, Any] = {}
        for path in paths:
            try:
                file = safe_open(str(path), framework="pt")
                names = list(file.keys())
            except (SafetensorError, OSError) as error:
                raise InputError(f"is no safetensors file: {error}", field="--weights", source=str(path)) from None
            self._files.append(file)
            self._holder.update(dict.fromkeys(names, file))

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of that name. Raises InputError where it is missing or of another shape."""
        if name not in self._holder:
            raise InputError(f"has no tensor {name}", field="--weights", source=str(self.folder))
        tensor: torch.Tensor = self._holder[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise InputError(
                f"{name} has shape {tuple(tensor.shape)}, the model's config asks for {shape}",
                field="--weights",
                source=str(self.folder),
            )
        return tensor

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()
        self._holder.clear()
