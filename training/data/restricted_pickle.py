"""Pickles of arrays, safe to open if they are hostile.

A pickle is a program that calls functions by name. Here only the few names that files of arrays use are known, and each
is a stand-in that checks its arguments and makes a plain container, number, string or array. numpy's own `dtype` and
`_reconstruct` are never called: with a state chosen by a hostile file, they read and write memory outside the array.
"""

import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from training.data.images import DataError

# Booleans, integers, floats, bytes, text and Python objects; no structured types, no dates.
_DTYPE = re.compile(r"[biufSU][0-9]{1,9}|O8?")
_BYTE_ORDERS = {"<", ">", "=", "|"}


class _RefusedError(Exception):
    """The file uses something that a file of arrays does not need."""


def load_pickle(path: Path) -> object:
    """The content of a pickle made of builtin containers, strings, numbers and numpy arrays.

    Byte strings of Python 2 stay bytes, so that an array's content is not copied.

    Raises:
        DataError: no such file, not a complete pickle, or one that uses any other name.
    """
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="bytes").load()
    except _RefusedError as error:
        raise DataError(
            f"{path}: refused, it {error}. Only builtin containers, strings, numbers and numpy "
            "arrays of these are read; a data file that needs more is damaged or hostile."
        ) from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise DataError(f"{path}: does not fit in memory, or is not a pickle") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path}: not a readable pickle; truncated, damaged or another format ({error})") from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        stand_in = _STAND_INS.get((module_name, global_name))
        if stand_in is None:
            raise _RefusedError(f"refers to {module_name}.{global_name}")
        return stand_in

    def persistent_load(self, pid: object, /) -> Any:
        raise _RefusedError(f"refers to an object outside itself ({pid!r:.80})")


class _StandIn:
    """A function for the pickle to call. No attribute can be set, so the BUILD opcode cannot change it."""

    __slots__ = ("_function",)
    _function: Callable[..., object]

    def __init__(self, function: Callable[..., object]) -> None:
        object.__setattr__(self, "_function", function)

    def __setattr__(self, name: str, value: object) -> None:
        raise _RefusedError(f"sets the attribute {name!r} of a function")

    def __call__(self, *args: object) -> object:
        return self._function(*args)


class _Dtype:
    """Stands in for numpy.dtype('u1', False, True). Only the byte order of its state is used."""

    __slots__ = ("value",)

    def __init__(self, code: object, *_: object) -> None:
        text = code.decode("latin-1") if isinstance(code, bytes) else code
        if not (isinstance(text, str) and _DTYPE.fullmatch(text)):
            raise _RefusedError(f"holds an array of type {text!r:.80}")
        self.value = np.dtype(text)

    def __setstate__(self, state: object) -> None:
        parts: tuple[object, ...] = state if isinstance(state, tuple) else ()
        order = parts[1] if len(parts) >= 5 else None
        text = order.decode("latin-1") if isinstance(order, bytes) else order
        if text not in _BYTE_ORDERS or any(part is not None for part in parts[2:5]):
            raise _RefusedError(f"alters the array type {self.value} with {state!r:.80}")
        self.value = self.value.newbyteorder(cast("Any", text))


class _Array(np.ndarray[Any, Any]):
    """An array that the pickle makes empty and then gives its content, once."""

    __slots__ = ()

    def __setstate__(self, state: Any, /) -> None:
        if self.size or not (isinstance(state, tuple) and len(cast("Any", state)) == 5):
            raise _RefusedError(f"gives an array the state {state!r:.80}")
        _, shape, dtype, fortran, content = cast("tuple[object, ...]", state)
        value, size = _checked(dtype), math.prod(_shape(shape))
        # numpy does not check the length of a list, nor always that of bytes.
        if value.hasobject:
            whole = isinstance(content, list) and len(cast("list[object]", content)) == size
        else:
            whole = isinstance(content, bytes) and len(content) == size * value.itemsize
        if not whole:
            raise _RefusedError(f"gives an array of shape {shape} and type {value} too little data")
        super().__setstate__(cast("Any", (1, shape, value, bool(fortran), content)))


def _checked(dtype: object) -> np.dtype[Any]:
    if not isinstance(dtype, _Dtype):
        raise _RefusedError(f"holds an array of type {dtype!r:.80}")
    return dtype.value


def _shape(shape: object) -> tuple[int, ...]:
    sizes = cast("tuple[object, ...]", shape) if isinstance(shape, tuple) else (-1,)
    if len(sizes) > 32 or not all(type(n) is int and n >= 0 for n in sizes):
        raise _RefusedError(f"holds an array of shape {shape!r:.80}")
    return cast("tuple[int, ...]", sizes)


def _ndarray(*_: object) -> object:
    raise _RefusedError("makes an array by hand")


def _reconstruct(kind: object, *_: object) -> _Array:
    if kind is not _NDARRAY:
        raise _RefusedError(f"makes an array of the class {kind!r:.80}")
    return np.ndarray.__new__(_Array, (0,), np.uint8)


def _frombuffer(
    content: object, dtype: object, shape: object, order: object = "C", axes: object = None
) -> NDArray[Any]:
    """Arrays of protocol 5. Read-only ones are stored as bytes; they are copied to be writable."""
    value, sizes = _checked(dtype), _shape(shape)
    if value.hasobject or not isinstance(content, bytes | bytearray) or order not in {*"CFK"}:
        raise _RefusedError(f"holds an array of type {value} in a buffer")
    buffer = content if isinstance(content, bytearray) else bytearray(content)
    flat = np.frombuffer(buffer, value)
    if order == "K" and axes is not None:
        return flat.reshape(sizes).transpose(_shape(axes))
    return flat.reshape(sizes, order="F" if order == "F" else "C")


def _scalar(dtype: object, content: object = None) -> object:
    value = _checked(dtype)
    if value.hasobject or not (isinstance(content, bytes) and len(content) == value.itemsize):
        raise _RefusedError(f"holds a number of type {value} with other data")
    return np.frombuffer(content, value)[0].item()


def _encode(text: object, encoding: object = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in {"latin1", "latin-1"}:
        raise _RefusedError(f"encodes {text!r:.80} as {encoding!r:.80}")
    return text.encode("latin-1")


def _bytes(*args: object) -> bytes:
    return _encode(*args) if args else b""


def _bytearray(*args: object) -> bytearray:
    return bytearray(args[0] if args and isinstance(args[0], bytes) else _bytes(*args))


def _items(items: object = ()) -> list[Any]:
    if not isinstance(items, list | tuple):
        raise _RefusedError(f"makes a collection of {items!r:.80}")
    return list(cast("list[Any]", items))


_NDARRAY = _StandIn(_ndarray)
_STAND_INS = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _StandIn(_Dtype),
    ("_codecs", "encode"): _StandIn(_encode),
    ("collections", "OrderedDict"): _StandIn(lambda *args: dict(_items(*args))),
    # numpy 2 renamed numpy.core to numpy._core.
    **{
        (f"numpy.{core}.{module}", name): _StandIn(function)
        for core in ("core", "_core")
        for module, name, function in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _frombuffer),
        )
    },
    # Python 2 called builtins __builtin__.
    **{
        (module, name): _StandIn(function)
        for module in ("builtins", "__builtin__")
        for name, function in (
            ("bytes", _bytes),
            ("bytearray", _bytearray),
            ("set", lambda *args: set(_items(*args))),
            ("frozenset", lambda *args: frozenset(_items(*args))),
        )
    },
}
