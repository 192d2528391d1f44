"""Views of support images: crops of an image, each of which is an example of its own in the loss.

The first view of an image is the one that predictions see. Arrays of embeddings are (M, d) where images have one view,
and (M, V, d) where they have V.
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def as_examples(phi: NDArray[Number], classes: NDArray[np.intp]) -> tuple[NDArray[Number], NDArray[np.intp]]:
    """Embeddings (M V, d) of all views, image by image, and their classes (M V,), for phi (M, d) or (M, V, d)."""
    return phi.reshape(-1, phi.shape[-1]), np.repeat(classes, views_of(phi))


def first_views(phi: NDArray[Number]) -> NDArray[Number]:
    """(M, d) of phi (M, d) or (M, V, d)."""
    return phi if phi.ndim == 2 else phi[:, 0]


def views_of(phi: NDArray[Any]) -> int:
    """V, for phi (M, V, d); 1 for (M, d)."""
    return 1 if phi.ndim == 2 else phi.shape[1]
