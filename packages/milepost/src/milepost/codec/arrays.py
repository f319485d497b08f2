"""numpy arrays and scalars, for applications that use numpy. Milepost itself does not.

Arrays of plain dtypes are written as LangGraph writes them. Arrays of records, of objects, and scalars are ours.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from milepost.codec import exts


def reduce_array(obj: Any) -> tuple[int, list[Any]] | None:
    """(code, payload) for an array or a scalar; None when `obj` is neither, or of a kind that is not stored.

    Subclasses of ndarray are not stored: what they add (a mask, units) would be lost.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(obj, numpy.generic):
        return None if obj.dtype.hasobject else (exts.NUMPY_SCALAR, [_form(obj.dtype), obj.tobytes()])
    if type(obj) is not numpy.ndarray:
        return None
    order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
    shape = list(obj.shape)
    if obj.dtype == numpy.dtype("O"):
        return exts.NUMPY_OBJECTS, [shape, order, obj.ravel(order=order).tolist()]
    if obj.dtype.hasobject:
        return None
    data = obj.tobytes(order=order)
    if obj.dtype.names is None:
        return exts.NUMPY_ARRAY, [obj.dtype.str, shape, order, data]
    return exts.NUMPY_RECORDS, [_form(obj.dtype), shape, order, data]


def _form(dtype: Any) -> Any:
    """A dtype as text, or nested lists and dicts where text does not say it all."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_form(base), list(shape)]
    if dtype.names is None:
        return dtype.str
    fields = [[name, _form(dtype.fields[name][0]), dtype.fields[name][1]] for name in dtype.names]
    return {"fields": fields, "itemsize": dtype.itemsize, "aligned": dtype.isalignedstruct}


def _dtype(numpy: Any, form: Any) -> Any:
    if isinstance(form, str):
        return numpy.dtype(form)
    if isinstance(form, list):
        return numpy.dtype((_dtype(numpy, form[0]), tuple(form[1])))
    names, forms, offsets = zip(*form["fields"], strict=True) if form["fields"] else ((), (), ())
    layout = {
        "names": list(names),
        "formats": [_dtype(numpy, each) for each in forms],
        "offsets": list(offsets),
        "itemsize": form["itemsize"],
    }
    return numpy.dtype(layout, align=form["aligned"])


def array(payload: list[Any]) -> Any:
    """An array from (dtype, shape, order, bytes), writable."""
    form, shape, order, data = payload
    numpy: Any = importlib.import_module("numpy")
    dtype = _dtype(numpy, form)
    if dtype.itemsize == 0:
        return numpy.zeros(shape, dtype, order)
    flat = numpy.frombuffer(data, dtype) if data else numpy.empty(0, dtype)
    return flat.reshape(shape, order=order).copy(order="K")


def objects(payload: list[Any]) -> Any:
    """An array of objects from (shape, order, elements)."""
    shape, order, elements = payload
    numpy: Any = importlib.import_module("numpy")
    flat = numpy.empty(len(elements), dtype=object)
    for index, element in enumerate(elements):
        flat[index] = element
    return flat.reshape(shape, order=order)


def scalar(payload: list[Any]) -> Any:
    """A scalar from (dtype, bytes)."""
    form, data = payload
    numpy: Any = importlib.import_module("numpy")
    dtype = _dtype(numpy, form)
    return numpy.frombuffer(data, dtype)[0] if dtype.itemsize else dtype.type()
