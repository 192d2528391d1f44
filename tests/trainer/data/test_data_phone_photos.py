"""The trainer reads HEIC, AVIF and TIFF files from class folders."""

from pathlib import Path

import numpy as np

from comln_serve.imaging import Preprocessing
from tests.support.image_files import image_bytes
from training.data.image_folder import load_image_folder

COLOURS = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}


def test_the_trainer_reads_phone_photos_and_scans(tmp_path: Path) -> None:
    names = {"a.HEIC": "HEIC", "b.heif": "HEIC", "c.avif": "AVIF", "d.tif": "TIFF", "e.TIFF": "TIFF"}
    for label, colour in COLOURS.items():
        folder = tmp_path / "train" / label
        folder.mkdir(parents=True)
        for name, fmt in names.items():
            (folder / name).write_bytes(image_bytes(colour, fmt=fmt))
    found = load_image_folder(tmp_path, "train", Preprocessing(image_size=16), (1.0, 0.0, 0.0))
    assert [len(members) for members in found.members] == [5, 5, 5]
    assert found.names == ("blue", "green", "red")
    for members, name in zip(found.members, found.names, strict=True):
        means = found.images[members].mean(axis=(1, 2))
        assert np.abs(means - COLOURS[name]).max() < 25
