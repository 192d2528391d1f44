"""Embeddings rounded to 16 bits are stored in half the room, and come back to the last bit."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from comln_serve.domain.sixteen_bits import from_int16, rounded, to_int16
from comln_serve.storage import Store, TenantStore
from tests.support.classifiers import LABELS, add, classifier, support
from tests.support.databases import execute, migrate_to

Matrix = NDArray[np.float32]
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def embeddings(rows: int = 6, d: int = 64, scale: float = 1.0) -> Matrix:
    return (scale * np.random.default_rng(0).standard_normal((rows, d))).astype(np.float32)


def kept(found: Matrix) -> Matrix:
    packed = to_int16(found)
    assert packed is not None
    numbers, scales = packed
    assert (numbers.dtype, scales.dtype) == (np.int16, np.float32)
    return from_int16(numbers, scales)


@given(arrays(np.float32, (3, 5), elements=FLOATS))
def test_whatever_is_rounded_is_stored_to_the_last_bit_or_left_alone(phi: Matrix) -> None:
    found = rounded(phi)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert (np.abs(found - phi) <= np.abs(phi).max(axis=1, keepdims=True) * 1.6e-5).all()
    packed = to_int16(found)
    if packed is not None:
        np.testing.assert_array_equal(from_int16(*packed), found)


@given(arrays(np.float32, (4, 8), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_embeddings_of_usual_size_are_always_packed(phi: Matrix) -> None:
    phi = np.where(np.abs(phi) < 1e-20, 0.0, phi).astype(np.float32)
    np.testing.assert_array_equal(kept(rounded(phi)), rounded(phi))


@pytest.mark.parametrize("scale", [1e-25, 1e-3, 1.0, 3.7e8, 1e33])
def test_rounding_is_relative_to_the_largest_coordinate(scale: float) -> None:
    """Also where float16 would overflow."""
    phi = embeddings(scale=scale)
    error = np.abs(rounded(phi) - phi).max(axis=1) / np.abs(phi).max(axis=1)
    assert 5e-6 < error.max() <= 1.6e-5
    np.testing.assert_array_equal(kept(rounded(phi)), rounded(phi))


def test_embeddings_whose_largest_coordinate_is_rounded_down_to_that_of_a_smaller_scale() -> None:
    """By the largest coordinate alone that scale seems to be the right one."""
    above = 1.0 + np.linspace(0.0, 2e-5, 50)
    largest = np.outer(np.arange(128, 256) / 256 * 32767, above).reshape(-1, 1)
    phi = np.hstack([largest, np.full_like(largest, 1.2345)]).astype(np.float32)
    np.testing.assert_array_equal(kept(rounded(phi)), rounded(phi))


def test_extremes_and_zeros() -> None:
    largest = np.finfo(np.float32).max
    phi = np.array([[0, 0], [1, -1], [largest, 1], [1e-44, 1e-45], [-0.0, 2]], dtype=np.float32)
    found = rounded(phi)
    np.testing.assert_array_equal(found[2], phi[2], "rounded it would be infinite")
    np.testing.assert_array_equal(found[[0, 1, 4]], kept(found[[0, 1, 4]]))
    assert to_int16(phi[3:4]) is None, "smaller than a scale can be"
    tiny = np.array([[16383 * 129, 129]], dtype=np.float32) * np.float32(2.0**-149)
    assert to_int16(tiny) is None, "multiples of 129 / 2^150, which float32 does not have"


def test_embeddings_that_are_not_rounded_are_told_apart() -> None:
    phi = embeddings()
    assert to_int16(phi) is None
    mixed = rounded(phi)
    mixed[-1] = phi[-1]
    assert to_int16(mixed) is None
    assert to_int16(phi[:0]) is None


def test_the_store_takes_half_the_room_where_nothing_is_lost(mine: TenantStore, database_url: str) -> None:
    phi = embeddings(len(LABELS))
    for id_, matrix in (("clf_whole", phi), ("clf_rounded", rounded(phi))):
        mine.add(classifier(id_), replace(support(), embeddings=matrix), limit=10)
        found = mine.support(id_)[1].embeddings
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, matrix)
    sizes = execute(database_url, "SELECT length(embeddings), length(scales) FROM supports ORDER BY classifier")
    assert sizes == [(4 * phi.size, None), (2 * phi.size, 4 * len(LABELS))]


def test_a_changed_support_set_is_stored_by_what_it_is_now(mine: TenantStore, database_url: str) -> None:
    phi = embeddings(len(LABELS))
    mine.add(classifier("clf_a"), replace(support(), embeddings=rounded(phi)), limit=10)
    for revision, matrix, scaled in ((2, phi, False), (3, rounded(phi), True)):
        mine.replace(classifier("clf_a", revision=revision), replace(support(), embeddings=matrix))
        np.testing.assert_array_equal(mine.support("clf_a")[1].embeddings, matrix)
        assert execute(database_url, "SELECT scales IS NOT NULL FROM supports") == [(scaled,)]


def test_embeddings_of_before_are_float32(database_url: str) -> None:
    migrate_to(database_url, "0008")
    with closing(Store(database_url)) as store:
        add(store.for_tenant(""), "clf_a")
        execute(database_url, "UPDATE supports SET scales = NULL")
        np.testing.assert_array_equal(store.for_tenant("").support("clf_a")[1].embeddings, support().embeddings)
