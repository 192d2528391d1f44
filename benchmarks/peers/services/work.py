"""The work of every peer: an image file in, a class and its probability out. Runs in each peer's own environment.

Reads the folder named by the environment variable WORK: backbone.onnx, and head.npz with the classifier's rows `W`
(N, d), the `labels` (N,), the side of the network's input, `size`, the share of the square that is kept, `crop`, and
whether the CPU has to be told to add products of INT8 exactly, `exact`.
"""

import io
import math
import os
from pathlib import Path

import numpy as np
import onnxruntime as ort
from PIL import Image


class Classifier:
    """Decodes, embeds and classifies."""

    def __init__(self, threads: int) -> None:
        """Open the network. threads: of ONNX Runtime, for one call."""
        folder = Path(os.environ["WORK"])
        head = np.load(folder / "head.npz")
        self._W, self._labels, self._size = head["W"], [str(label) for label in head["labels"]], int(head["size"])
        self._crop = float(head["crop"])
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        if head["exact"]:  # as the server does
            options.add_session_config_entry("session.x64quantprecision", "1")
        self._session = ort.InferenceSession(folder / "backbone.onnx", options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    def decode(self, file: bytes) -> np.ndarray:
        """(size, size, 3) uint8: a centred square of a JPEG."""
        return self.fit(Image.open(io.BytesIO(file)))

    def fit(self, image: Image.Image) -> np.ndarray:
        """The same of an opened file."""
        enough = math.ceil(2 * self._size / self._crop)
        image.draft("RGB", (enough, enough))
        image = image.convert("RGB")
        side = min(image.size) * self._crop
        left, top = (image.width - side) / 2, (image.height - side) / 2
        box = (left, top, left + side, top + side)
        return np.asarray(image.resize((self._size, self._size), Image.Resampling.BILINEAR, box=box))

    def predict(self, images: np.ndarray) -> list[dict[str, object]]:
        """The label and its probability for each of (n, size, size, 3) uint8."""
        (embeddings,) = self._session.run(None, {self._input: images})
        logits = embeddings @ self._W.T
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = odds / odds.sum(axis=1, keepdims=True)
        best = probabilities.argmax(axis=1)
        return [
            {"label": self._labels[index], "probability": float(row[index])}
            for index, row in zip(best, probabilities, strict=True)
        ]
