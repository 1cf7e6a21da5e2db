"""Many arrays behind one pointer, for compiled code.

A NamedTuple of forty arrays is passed by Numba as some 280 scalars at every call: the core took a minute to compile
that way, and 8 seconds with a handle. A `Handle` is a plain object whose attributes are C-contiguous NumPy arrays.
Compiled functions receive the address of a small table (data pointer and shape of each array) and rebuild an array
where one is used; the loads are marked invariant, since the arrays of a handle are never replaced.

Only Numba's public extension interface is used (`numba.extending`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)
from numba.np.arrayobj import make_array, populate_array


class Handle:
    """Arrays by name. Subclasses annotate their arrays; the constructor takes exactly these.

    Raises:
        TypeError: when an array is missing, unknown, or not C-contiguous.
    """

    numba_type: HandleType
    address: int

    def __init__(self, **arrays: np.ndarray[Any, Any]) -> None:
        names = tuple(type(self).__annotations__)  # not the base's
        if set(arrays) != set(names):
            raise TypeError(f"{type(self).__name__} takes {sorted(names)}, not {sorted(arrays)}")
        table: list[int] = []
        fields = []
        for name in names:
            array = arrays[name]
            if not array.flags.c_contiguous:
                raise TypeError(f"{name} is not C-contiguous")
            object.__setattr__(self, name, array)
            fields.append((name, len(table), types.Array(_dtype(array), array.ndim, "C")))
            table += [array.ctypes.data, *array.shape]
        object.__setattr__(self, "_table", np.array(table, np.int64))
        object.__setattr__(self, "address", self._table.ctypes.data)  # type: ignore[attr-defined]
        object.__setattr__(self, "numba_type", HandleType(type(self).__name__, tuple(fields)))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be replaced; write into the array")


def _dtype(array: np.ndarray[Any, Any]) -> types.Type:
    from numba.np import numpy_support

    return numpy_support.from_dtype(array.dtype)


class HandleType(types.Type):
    def __init__(self, cls: str, fields: tuple[tuple[str, int, types.Array], ...]) -> None:
        self.fields = {name: (place, array) for name, place, array in fields}
        super().__init__(f"{cls}({', '.join(f'{name}: {array}' for name, _, array in fields)})")


@typeof_impl.register(Handle)
def _typeof(value: Handle, context: object) -> HandleType:
    return value.numba_type


@register_model(HandleType)
class HandleModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: HandleType) -> None:
        super().__init__(dmm, fe_type, cgutils.intp_t.as_pointer())


@unbox(HandleType)
def _unbox(typ: HandleType, obj: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(obj, "address")
    number = c.pyapi.long_as_longlong(address)
    c.pyapi.decref(address)
    pointer = c.builder.inttoptr(number, cgutils.intp_t.as_pointer())
    return NativeValue(pointer, is_error=cgutils.is_not_null(c.builder, c.pyapi.err_occurred()))


@infer_getattr
class HandleAttribute(AttributeTemplate):
    key = HandleType

    def generic_resolve(self, typ: HandleType, attr: str) -> types.Array | None:
        return typ.fields[attr][1] if attr in typ.fields else None


@lower_getattr_generic(HandleType)
def _getattr(context: Any, builder: Any, typ: HandleType, value: Any, attr: str) -> Any:
    place, array_type = typ.fields[attr]

    def load(offset: int) -> Any:
        loaded = builder.load(builder.gep(value, [context.get_constant(types.intp, place + offset)]))
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    array = make_array(array_type)(context, builder)
    itemsize = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
    shape = [load(1 + axis) for axis in range(array_type.ndim)]
    strides = [context.get_constant(types.intp, itemsize)]
    for axis in range(array_type.ndim - 1, 0, -1):
        strides.insert(0, builder.mul(strides[0], shape[axis]))
    data = builder.inttoptr(load(0), array.data.type)
    populate_array(
        array,
        data=data,
        shape=cgutils.pack_array(builder, shape, ty=cgutils.intp_t),
        strides=cgutils.pack_array(builder, strides, ty=cgutils.intp_t),
        itemsize=context.get_constant(types.intp, itemsize),
        meminfo=None,
    )
    return array._getvalue()
