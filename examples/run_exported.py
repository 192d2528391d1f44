"""Classify images with an exported classifier: NumPy, Pillow and ONNX Runtime, no server.

    curl -so letters.onnx 'http://localhost:8000/classifiers/letters/export?format=onnx'
    python examples/run_exported.py letters.onnx IMAGE...

The graph takes decoded images of any size. What is left to do is in `decode`: it gives the server's
pixels, and so its probabilities.
"""

import json
import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image, ImageOps


def main(model: str, *images: str) -> None:
    session: Any = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    labels, threshold = json.loads(about["labels"]), float(about.get("unknown_threshold", "-inf"))
    for path in images:
        pixels = decode(Path(path), json.loads(about["preprocessing"]))
        # One image at a time, as their sizes differ; equal ones can be a batch.
        (probabilities,), (similarities,) = session.run(
            ["probabilities", "similarities"], {"images": pixels[np.newaxis]}
        )
        best = int(probabilities.argmax())
        unlike = ", but unlike every class" if similarities.max() < threshold else ""
        print(f"{path}: {labels[best]} ({probabilities[best]:.1%}){unlike}", flush=True)


def decode(path: Path, preprocessing: dict[str, Any]) -> NDArray[np.uint8]:
    """An upright RGB image (height, width, 3) uint8, without transparency."""
    image = Image.open(path)
    if image.format == "JPEG":
        # A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size while twice the pixels of the crop remain.
        enough = math.ceil(2 * preprocessing["image_size"] / preprocessing.get("crop_fraction", 1))
        image.draft(None, (enough, enough))
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # greyscale of 16 bits, which convert() would clip at 255
        image = Image.fromarray(((np.asarray(image, np.uint32) + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.new("RGBA", layer.size, (*preprocessing["background"], 255))
        image.alpha_composite(layer)
    return np.asarray(image.convert("RGB"))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python run_exported.py MODEL.onnx IMAGE...")
    with suppress(BrokenPipeError):  # as of `| head`
        main(*sys.argv[1:])
