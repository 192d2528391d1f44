"""Which views of support images are examples: all of them, or, of very many images, the first ones."""

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.views import first_views, views_of

# Multiply-adds of an evaluation of the flow (see `folds.fold_cost`), where Gram matrix and metric cost as much as up to
# 100 more classes. Up to this work solve and report take about as long as embedding the views of photos: with d = 1600,
# 81 classes have 525 images of three views each, five have 690.
_MOST_WORK, _OTHER_CLASSES = 4.5e8, 100


def affordable_views(phi: NDArray[np.float32], n_classes: int) -> NDArray[np.float32]:
    """phi (M, d) or (M, V, d), or its first views (M, d) where all of them would take too long to adapt to."""
    examples, width = len(phi) * views_of(phi), phi.shape[-1]
    work = (n_classes + _OTHER_CLASSES) * examples * min(examples, 2 * width)
    return phi if work <= _MOST_WORK else first_views(phi)
