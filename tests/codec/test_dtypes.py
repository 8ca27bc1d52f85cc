"""Names, widths and numbers of element types."""

from __future__ import annotations

import numpy as np
import pytest

from perdure.codec.dtypes import DTYPES, dtype_named, name_of, nbytes
from perdure.errors import CallError

torch = pytest.importorskip("torch")

TORCH = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.quint"))
}


def test_every_dtype_of_torch_is_known_with_its_width() -> None:
    assert set(TORCH) == set(DTYPES)
    for name, dtype in TORCH.items():
        assert DTYPES[name].itemsize == dtype.itemsize, name


def test_numbers_in_frames_never_change() -> None:
    assert [dtype.number for dtype in DTYPES.values()] == list(range(len(DTYPES)))
    assert " ".join(DTYPES) == (
        "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 "
        "complex32 complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu "
        "float4_e2m1fn_x2 bits8 bits16 bits1x8 bits2x4 bits4x2 "
        "int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7"
    )


def test_safetensors_names_are_those_that_safetensors_writes() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    for name, dtype in DTYPES.items():
        if dtype.safetensors is not None:
            blob = safetensors.save({"t": torch.empty(2, 2, dtype=TORCH[name])})
            assert f'"dtype":"{dtype.safetensors}"'.encode() in blob, name


def test_numpys_dtypes_are_found_by_name_and_others_stand_in_for_what_it_lacks() -> None:
    assert name_of(np.dtype(np.complex64)) == "complex64"
    assert DTYPES["float32"].numpy == np.float32
    assert DTYPES["float32"].in_numpy
    assert DTYPES["bfloat16"].numpy == np.uint16
    assert not DTYPES["bfloat16"].in_numpy
    assert all(dtype.numpy.itemsize == dtype.itemsize for dtype in DTYPES.values())


@pytest.mark.parametrize("dtype", ["O", "U3", "S4", "M8[s]", "m8[s]", ">f4", "f4,i4", "V2", np.longdouble])
def test_arrays_that_are_no_tensors_are_refused(dtype: str) -> None:
    with pytest.raises(CallError, match="cannot be encoded"):
        name_of(np.dtype(dtype))


def test_sizes_are_exact_beyond_64_bits_and_bad_ones_are_refused() -> None:
    assert nbytes("float64", (1 << 40, 1 << 40)) == 1 << 83
    assert nbytes("torch.int4", []) == 1
    with pytest.raises(CallError, match="negative"):
        nbytes("int8", (2, -1))
    with pytest.raises(CallError, match="float13"):
        dtype_named("float13")
