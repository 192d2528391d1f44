"""Folders of tiny images, for clients."""

from pathlib import Path

from tests.support.image_files import image_bytes

COLOURS = {"blue": (30, 30, 220), "green": (30, 220, 30), "red": (220, 30, 30)}


def class_folder(root: Path, each: int = 2, side: int = 20) -> Path:
    """`root/<colour>/<number>.png`."""
    for label, colour in COLOURS.items():
        (root / label).mkdir(parents=True)
        for number in range(each):
            (root / label / f"{number}.png").write_bytes(image_bytes(colour, (side, side), seed=number))
    return root
