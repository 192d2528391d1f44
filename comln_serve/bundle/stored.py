"""Support embeddings in the form in which a bundle has servers store them. Server and trainer round alike."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from comln_serve.domain.sixteen_bits import rounded

StoredEmbeddings = Literal["float32", "int16"]
"""As they are, or rounded to 16 bits (`comln_serve.domain.sixteen_bits`)."""


def as_stored(embeddings: NDArray[np.float32], form: StoredEmbeddings) -> NDArray[np.float32]:
    """Embeddings (M, V d) as of `SupportSet`, rounded if the form is int16: the numbers of a row have one scale."""
    return rounded(embeddings) if form == "int16" else embeddings
