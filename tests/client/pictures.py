"""Folders of tiny images, for clients."""

from pathlib import Path

from tests.support.image_files import image_bytes

COLOURS = {"blue": (30, 30, 220), "green": (30, 220, 30), "red": (220, 30, 30)}


def class_folder(root: Path, each: int = 2, side: int = 20, seed: int = 0) -> Path:
    """`root/<colour>/<number>.png`, other ones by another seed."""
    for label, colour in COLOURS.items():
        (root / label).mkdir(parents=True)
        for number in range(each):
            (root / label / f"{number}.png").write_bytes(image_bytes(colour, (side, side), seed=seed + number))
    return root
