"""Pickles of arrays are read, whichever program wrote them; all other pickles are refused."""

import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.data_files import pickle_of_python2, pictures
from training.data import DataError
from training.data.restricted_pickle import load_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
# Opcodes that make an empty array and begin its state: (version, shape, ...
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n(I0\nt"
ARRAY = EMPTY + b"C\x01b\x87R("


def dtype(code: bytes, flags: int = 0, names: bytes = b"N") -> bytes:
    """Opcodes of numpy.dtype(code) and of a state, which a pickle can choose."""
    state = b"(K\x03U\x01|N" + names + b"NJ\xff\xff\xff\xffJ\xff\xff\xff\xffK" + bytes([flags]) + b"tb"
    return b"cnumpy\ndtype\nU" + bytes([len(code)]) + code + b"K\x00K\x01\x87R" + state


def read(tmp_path: Path, content: bytes) -> Any:
    path = tmp_path / "data.pickle"
    path.write_bytes(content)
    return load_pickle(path)


class Calls:
    """Is pickled as a call of `function`."""

    def __init__(self, function: Any, *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


class TestWhatIsRead:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_containers_numbers_strings_and_arrays(self, tmp_path: Path, protocol: int) -> None:
        content = {
            "data": pictures(3),
            "empty": np.zeros((0, 4), np.float32),
            "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            "strided": np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
            "big": np.arange(5, dtype=">i4"),
            "bool": np.array([True, False]),
            "text": np.array(["a", "bc"]),
            "bytes": np.array([b"a", b"bc"]),
            "objects": np.array(["a", None, 3], dtype=object),
            "read_only": pictures(1),
        }
        content["read_only"].setflags(write=False)
        plain = {
            "scalars": [np.int64(3), np.float32(0.5), np.str_("x"), np.bool_(True)],
            "rest": [1, 2.5, None, True, "é", b"\xff", b"", (1, 2), {3}, frozenset({4}), 2**80],
            "array": bytearray(b"\x00\xff"),
            "ordered": OrderedDict(b=1, a=2),
        }
        found = read(tmp_path, pickle.dumps(content | plain, protocol))
        for key, array in content.items():
            np.testing.assert_array_equal(found[key], array)
            assert found[key].dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
            assert found[key].flags.writeable
        assert {key: found[key] for key in plain} == plain
        assert list(found["ordered"]) == ["b", "a"]

    def test_what_python_2_wrote(self, tmp_path: Path) -> None:
        images = pictures(30)  # large enough for numpy to keep the bytes as they are
        found = read(tmp_path, pickle_of_python2({"data": images, "labels": [1, 2], "name": "é"}))
        np.testing.assert_array_equal(found[b"data"], images)
        assert found[b"labels"] == [1, 2]
        assert found[b"name"] == "é".encode()

    def test_an_old_protocol_0_pickle(self, tmp_path: Path) -> None:
        assert read(tmp_path, b"(dp0\nS'labels'\np1\n(lp2\nI7\nas.") == {b"labels": [7]}


class TestWhatIsRefused:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    @pytest.mark.parametrize(
        ("function", "args", "named"),
        [
            (os.mkdir, ("{marker}",), f"{os.name}.mkdir"),
            (eval, ("open({marker!r}, 'w')",), "eval"),
            (exec, ("open({marker!r}, 'w')",), "exec"),
            (getattr, ([], "append"), "getattr"),
            (np.load, ("{marker}",), "load"),
            (open, ("{marker}", "w"), "open"),
            (type, ("T", (), {}), "type"),
            (memoryview, (b"x",), "memoryview"),
        ],
        ids=lambda value: getattr(value, "__name__", ""),
    )
    @pytest.mark.parametrize("where", ["alone", "nested", "object array", "after data"])
    def test_calls(self, tmp_path: Path, protocol: int, function: Any, args: Any, named: str, where: str) -> None:
        marker = str(tmp_path / "marker")
        call = Calls(function, *(a.format(marker=marker) if type(a) is str else a for a in args))
        content: Any = {
            "alone": call,
            "nested": {"data": [({"labels": call},)]},
            "object array": {"data": np.array([call, call], dtype=object)},
            "after data": [pictures(2), call],
        }[where]
        with pytest.raises(DataError, match=rf"data\.pickle: refused, it refers to .*{named}"):
            read(tmp_path, pickle.dumps(content, protocol))
        assert not Path(marker).exists()

    @pytest.mark.parametrize(
        ("content", "named"),
        [
            (b"cos\nsystem\n(S'true'\ntR.", r"os\.system"),
            (b"(S'true'\nios\nsystem\n.", r"os\.system"),  # INST
            (b"(cos\nsystem\nS'true'\no.", r"os\.system"),  # OBJ
            (b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.", r"posix\.system"),
            (b"\x80\x04\x8c\x05numpy\x8c\x0ddtype.__new__\x93.", r"numpy\.dtype\.__new__"),
            (b"\x80\x04\x8c\x08builtins\x8c\x0aset.update\x93.", r"builtins\.set\.update"),
            (b"c__builtin__\neval\n(S'1'\ntR.", r"__builtin__\.eval"),
            (b"ccopy_reg\n_reconstructor\n(c__builtin__\nset\nNNtR.", "_reconstructor"),
            (b"cnumpy\nmemmap\n.", r"numpy\.memmap"),
            (b"cnumpy.f2py.diagnose\nrun\n.", "diagnose"),
            (b"Pos.system\n.", "outside itself"),
            (b"\x80\x02U\x06systemQ.", "outside itself"),  # BINPERSID
        ],
    )
    def test_names_and_references_of_every_opcode(self, tmp_path: Path, content: bytes, named: str) -> None:
        with pytest.raises(DataError, match=rf"data\.pickle: refused, it refers to .*{named}"):
            read(tmp_path, content)

    @pytest.mark.parametrize(
        "content",
        [
            b"c_codecs\nencode\n}S'x'\nK\x01sb.",  # BUILD sets attributes
            b"c_codecs\nencode\nN}S'_function'\nc__builtin__\nset\ns\x86b.",  # and slots
            b"cnumpy\ndtype\nN}S'value'\nK\x01s\x86b.",
            b"\x80\x02c__builtin__\nset\n)\x81.",  # NEWOBJ
            b"\x80\x02\x82\x01.",  # EXT1
            b"c_codecs\nencode\n(S'abc'\nS'rot13'\ntR.",
            b"c__builtin__\nbytes\n(I1000000000000\ntR.",  # would need more memory than there is
            b"c__builtin__\nbytearray\n(I1000000000000\ntR.",
            b"c__builtin__\nset\n(I3\ntR.",
            b"cnumpy\nndarray\n(I3\ntR.",
        ],
    )
    def test_misuse_of_what_is_allowed(self, tmp_path: Path, content: bytes) -> None:
        with pytest.raises(DataError, match=r"data\.pickle: (refused|not a readable)"):
            read(tmp_path, content)

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            # numpy reads the list's items without counting them, and where the flags say that the
            # items are not objects it takes the bytes for pointers.
            (ARRAY + b"K\x01K\x03\x85" + dtype(b"O8", 63) + b"\x89]K\x01atb.", "too little data"),
            (ARRAY + b"K\x01K\x01\x85" + dtype(b"O8") + b"\x89C\x08AAAAAAAAtb.", "too little"),
            (ARRAY + b"K\x01K\x09\x85" + dtype(b"u1") + b"\x89C\x08AAAAAAAAtb.", "too little"),
            (ARRAY + b"K\x01J\xff\xff\xff\xff\x85" + dtype(b"u1") + b"\x89C\x00tb.", "shape"),
            (ARRAY + b"K\x01(" + b"I4294967296\n" * 2 + b"t" + dtype(b"u1") + b"\x89C\x00tb.", "too little"),
            (ARRAY + b"K\x01K\x01\x85U\x02u1\x89C\x01Atb.", "type b'u1'"),
            (b"\x80\x02" + dtype(b"V8") + b".", "'V8'"),
            (b"\x80\x02" + dtype(b"i4,O") + b".", "'i4,O'"),
            (b"\x80\x02" + dtype(b"u1", names=b"U\x01a") + b".", "alters the array type"),
            (EMPTY.replace(b"cnumpy\nndarray", b"c__builtin__\nset") + b"C\x01b\x87R.", "array of the class"),
            (ARRAY + b"tb.", "gives an array the state"),
            (
                b"\x80\x02cnumpy.core.multiarray\nscalar\n" + dtype(b"O8") + b"C\x08AAAAAAAA\x86R.",
                "number of type object",
            ),
            (b"\x80\x02cnumpy.core.multiarray\nscalar\n" + dtype(b"i8") + b"C\x01A\x86R.", "number of type int64"),
            (
                b"\x80\x02cnumpy.core.numeric\n_frombuffer\n(C\x08AAAAAAAA" + dtype(b"O8") + b"K\x01\x85U\x01CtR.",
                "in a buffer",
            ),
        ],
    )
    def test_arrays_whose_content_does_not_fit_their_shape_or_type(
        self, tmp_path: Path, content: bytes, why: str
    ) -> None:
        if not content.startswith(b"\x80"):
            content = b"\x80\x03" + content
        with pytest.raises(DataError, match=rf"data\.pickle: refused, it .*{why}"):
            read(tmp_path, content)

    def test_an_array_is_filled_once(self, tmp_path: Path) -> None:
        state = b"(K\x01K\x01\x85" + dtype(b"u1") + b"\x89C\x01Atb"
        once = b"\x80\x03" + ARRAY[:-1] + state
        assert read(tmp_path, once + b".").tolist() == [65]
        with pytest.raises(DataError, match="refused"):
            read(tmp_path, once + state + b".")

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_truncated_anywhere(self, tmp_path: Path, protocol: int) -> None:
        whole = pickle.dumps({"data": pictures(2), "labels": ["a", 1]}, protocol)
        for length in range(0, len(whole) - 1, 7):
            with pytest.raises(DataError, match=r"data\.pickle"):
                read(tmp_path, whole[:length])

    @pytest.mark.parametrize(
        "content", [b"", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04", b"hello\n", b"\x80\x99.", b"\x00" * 64, b"."]
    )
    def test_files_that_are_not_pickles(self, tmp_path: Path, content: bytes) -> None:
        with pytest.raises(DataError, match=r"data\.pickle: (not a readable pickle|refused)"):
            read(tmp_path, content)

    def test_lengths_beyond_any_memory(self, tmp_path: Path) -> None:
        for opcode in (b"\x8e", b"\x96"):  # BINBYTES8, BYTEARRAY8
            with pytest.raises(DataError, match=r"data\.pickle"):
                read(tmp_path, b"\x80\x05" + opcode + struct.pack("<Q", 2**62) + b"x")

    def test_damage_anywhere_is_an_error_or_plain_data(self, tmp_path: Path) -> None:
        """Random bytes in valid pickles: a bad one raises DataError and nothing else."""
        rng = np.random.default_rng(0)
        whole = [
            *(pickle.dumps({"data": pictures(1), "labels": ["a", 1]}, p) for p in PROTOCOLS),
            pickle_of_python2({"data": pictures(1), "labels": ["a", 1]}),
        ]
        refused = 0
        for i in range(1000):
            damaged = bytearray(whole[i % len(whole)])
            for at in rng.integers(0, len(damaged), 2):
                # Not LONG_BINPUT: it may ask for a memo of gigabytes.
                damaged[at] = rng.choice([b for b in range(256) if b != ord("r")])
            try:
                read(tmp_path, bytes(damaged))
            except DataError:
                refused += 1
        assert refused > 200

    @pytest.mark.parametrize("name", ["gone.pickle", "."])
    def test_a_missing_file(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(DataError, match=str(tmp_path)):
            load_pickle(tmp_path / name)
