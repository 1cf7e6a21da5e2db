"""How the kernels say no: before the launch, with the field and the value."""

from __future__ import annotations

from typing import Any


class KernelInputError(ValueError):
    """An argument a launcher cannot work with. Nothing was launched, nothing written.

    Attributes:
        field: the launcher's argument at fault, e.g. ``block_table``.
        value: what it was (a shape, a dtype, a number), as shown in the message.
    """

    def __init__(self, field: str, message: str, value: Any) -> None:
        self.field = field
        self.value = value
        super().__init__(f"{field}: {message} (got {value!r})")
