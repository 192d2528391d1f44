"""Finds near-duplicates: images of a class that show one scene, such as the frames of a burst, and the same photo
under several labels; and images that are examples themselves.

A held-out image is no test while nearly the same image is kept, so near-duplicates are left out
together (`comln_serve.report.folds`). docs/reports.md has what these thresholds find.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Two images of a class are near-duplicates if the cosine between their embeddings is at least this, and if their hashes
# differ in at most so many of the 64 bits: the cosine alone does not tell frames of a burst from photos that are merely
# alike.
_COSINE, _BITS = 0.8, 20
# Where a group holds this share of its class, the class is likely a burst, and what is nearly as
# close to the group belongs to it.
_LARGE = 0.4
_COSINE_TO_LARGE, _BITS_TO_LARGE = 0.6, 24
# An image belongs to a group if it is that close to at least this share of the group's images. Were one enough, most
# images of a class of many photos would form one group: of different traffic signs of a kind one pair in twelve is.
_SHARE = 0.5

_ROWS = 256  # of pairs compared at once: limits the memory

# Images of equal hashes whose embeddings have at least this cosine are one photo, perhaps compressed anew.
_COSINE_OF_ONE_PHOTO = 0.95

# An image whose embedding has at least this cosine to an example's is that image, decoded to the same pixels. Of 3232
# photos of 81 groceries no two are over 0.99, but small networks give plain images almost the same embedding. One that
# was stored in 16 bits is over 0.9999995 to itself.
_COSINE_OF_ITSELF = 0.99999

_SMALLEST = 1e-30


def group_near_duplicates(
    phi: NDArray[np.float32], classes: NDArray[np.intp], hashes: Sequence[int | None]
) -> NDArray[np.intp]:
    """(M,) the group of each example, named by the position of its first member.

    The examples of a class are taken in order. Each joins the group of which the largest share are its near-duplicates,
    at least half, or begins a group. Most groups have one member.

    Args:
        phi, classes: (M, d) and (M,), as in `Head.adapt`.
        hashes: (M,) from `imaging.difference_hash`; an example without one is a group of its own.
    """
    groups = np.arange(len(classes))
    bits = np.array([found or 0 for found in hashes], dtype=np.uint64)
    hashed = np.array([found is not None for found in hashes])
    unit = _unit(phi)
    for c in np.unique(classes):
        members = np.flatnonzero((classes == c) & hashed)
        least = max(2.0, _LARGE * (classes == c).sum())
        groups[members] = members[_groups_of_class(unit[members], bits[members], least)]
    return groups


def _groups_of_class(unit: NDArray[np.float32], bits: NDArray[np.uint64], large: float) -> NDArray[np.intp]:
    """(n,) the group of each image of a class, named by its first member.

    Args:
        unit, bits: (n, d) and (n,) of the images.
        large: images of a group that attracts others.
    """
    near = _pairs(unit, bits, _COSINE, _BITS)
    of, sizes = np.arange(len(bits)), np.ones(len(bits))
    for i in range(len(bits)):
        shares = np.bincount(of[:i][near[i, :i]], minlength=len(bits)) / sizes
        group = int(shares.argmax())
        if shares[group] >= _SHARE:
            of[i] = group
            sizes[group] += 1
    attracting = np.flatnonzero(np.bincount(of) >= large)
    if len(attracting):
        near = _pairs(unit, bits, _COSINE_TO_LARGE, _BITS_TO_LARGE)
    for group in attracting:
        inside = of == group
        if not inside.any():  # it joined the one before
            continue
        # (n,) how many of those inside each image is near to. Counted anew in each round, it would take minutes where
        # thousands join one by one.
        near_inside = near[inside].sum(axis=0)
        while True:
            rest = of[~inside]
            near_pairs = np.bincount(rest, near_inside[~inside], len(bits))
            pairs = np.bincount(rest, minlength=len(bits)) * inside.sum()
            joined = ((pairs > 0) & (near_pairs >= _SHARE * pairs))[of]
            if not joined.any():
                break
            near_inside += near[joined].sum(axis=0)
            inside |= joined
            of[joined] = group
    _, first, place = np.unique(of, return_index=True, return_inverse=True)
    return first[place]


def _pairs(unit: NDArray[np.float32], bits: NDArray[np.uint64], cosine: float, most_bits: int) -> NDArray[np.bool_]:
    """(n, n) which images have embeddings of at least that cosine, and hashes that differ in at most so many bits."""
    near = np.empty((len(bits), len(bits)), np.bool_)
    for start in range(0, len(bits), _ROWS):
        rows = slice(start, start + _ROWS)
        near[rows] = unit[rows] @ unit.T >= cosine
        near[rows] &= np.bitwise_count(bits[rows, None] ^ bits) <= most_bits
    return near


def photos_of_several_classes(
    phi: NDArray[np.float32], classes: NDArray[np.intp], hashes: Sequence[int | None]
) -> list[NDArray[np.intp]]:
    """The positions of examples that are the same photo in two classes or more, an array for each photo.

    Args:
        phi, classes, hashes: as in `group_near_duplicates`.
    """
    hashed = np.flatnonzero([found is not None for found in hashes])
    bits = np.array([found for found in hashes if found is not None], dtype=np.uint64)
    order = np.argsort(bits, kind="stable")
    found: list[NDArray[np.intp]] = []
    for same in np.split(hashed[order], np.flatnonzero(np.diff(bits[order])) + 1):
        if len(set(classes[same].tolist())) > 1:
            unit = _unit(phi[same])
            photo = same[unit @ unit[0] >= _COSINE_OF_ONE_PHOTO]
            if len(set(classes[photo].tolist())) > 1:
                found.append(np.sort(photo))
    return sorted(found, key=lambda photo: int(photo[0]))


def find_among(phi: NDArray[np.float32], examples: NDArray[np.float32]) -> list[int | None]:
    """(n,) position of the example that each image is identical to, or None.

    Args:
        phi: (n, d) of the images.
        examples: (M, d) of the examples' first views.
    """
    cosine = _unit(phi) @ _unit(examples).T
    nearest = cosine.argmax(axis=1)
    return [int(i) if row[i] >= _COSINE_OF_ITSELF else None for i, row in zip(nearest, cosine, strict=True)]


def _unit(phi: NDArray[np.float32]) -> NDArray[np.float32]:
    return phi / np.maximum(np.linalg.norm(phi, axis=1, keepdims=True), _SMALLEST)
