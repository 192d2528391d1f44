"""Any image folder: `<root>/<split>/<class>/<image>`, or `<root>/<class>/<image>`.

A class may be nested deeper, `<root>/<group>/<class>/<image>`: the folder that directly contains images is the class,
and its path below the root, or below the split, is its name. Without split folders the classes are split by the user's
lists, or else by the configured shares, always the same way.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comln_serve.imaging import Preprocessing
from training.data.class_lists import ALL, SPLITS, classes_by_share, like_split, own_split
from training.data.images import DataError, ImageSet, build_image_set

SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif"),
    *(".heic", ".heif", ".avif", ".tif", ".tiff", ".ppm"),
)
_EXPECTED = "<class>/<image> or <split>/<class>/<image>"


def load_image_folder(
    root: Path,
    split: str,
    preprocessing: Preprocessing,
    shares: tuple[float, float, float],
    lists: str | Mapping[Any, str] | None = None,
) -> ImageSet:
    """The classes of one split ("train", "val" or "test"), or of "all", in alphabetical order.

    Args:
        split: "all" is every class folder below the root; lists and shares are ignored.
        shares: of the classes for train, val and test, if nothing else splits them.
        lists: class lists of the splits, see `own_split`; folders are then `<root>/<class>`.
    """
    if not root.is_dir():
        found = "is a file, not a folder; unpack it if it is an archive" if root.exists() else "no such folder"
        raise DataError(f"{root}: {found}; expected {_EXPECTED}")
    if split == ALL:
        found = class_folders(root)
    elif lists is not None:
        places = {name: [root / name] for name in own_split(lists, root, split)}
        return load_listed_classes(places, preprocessing, split, root)
    elif any((root / name).is_dir() for name in SPLITS):
        found = class_folders(root / split)
    else:
        folders = class_folders(root)
        misnamed = sorted({name.partition("/")[0] for name in folders if like_split(name)})
        if len(misnamed) > 1:  # a single one may be a group of classes, such as shoes for training
            raise DataError(
                f"{root}: {', '.join(map(repr, misnamed))}: folders of splits are called {', '.join(SPLITS)}; rename "
                "them, or name the classes of each split in data.splits"
            )
        found = {name: folders[name] for name in classes_by_share(sorted(folders), split, shares, root)}
    if not found:
        raise DataError(f"{root}, split {split}: there is no folder of images in it; expected {_EXPECTED}")
    return load_class_folders(found, preprocessing, f"{root}, split {split}")


def load_listed_classes(
    places: Mapping[str, Sequence[Path]], preprocessing: Preprocessing, split: str, root: Path
) -> ImageSet:
    """The images of each listed class, from the first of its places that is a folder."""
    found = {name: next(filter(Path.is_dir, paths), None) for name, paths in places.items()}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        looked = " or ".join(str(path.relative_to(root)) for path in places[missing[0]])
        raise DataError(
            f"{root}: {len(missing)} of the {len(found)} classes of the {split} split have no "
            f"folder, first {missing[0]!r} (looked for {looked})"
        )
    folders = {name: path for name, path in found.items() if path is not None}
    return load_class_folders(folders, preprocessing, f"{root}, split {split}")


def load_class_folders(folders: Mapping[str, Path], preprocessing: Preprocessing, where: str) -> ImageSet:
    """The images of each class's folder, files in alphabetical order; `where` is for error messages."""
    classes = [
        (name, [(path.name, path.read_bytes) for path in sorted(folder.iterdir()) if _is_image(path)])
        for name, folder in folders.items()
    ]
    for name, files in classes:
        if not files:
            raise DataError(
                f"{where}: class {name!r} holds no image, of those ending in {', '.join(SUFFIXES)}; add some, or "
                "remove the folder"
            )
    return build_image_set(classes, preprocessing, where)


def class_folders(folder: Path) -> dict[str, Path]:
    """The class folders below `folder`, by their paths, in alphabetical order.

    A class folder directly contains images. An empty folder counts as a class without images, unless
    it is inside another class.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; the splits are {', '.join(SPLITS)}")
    found: dict[str, Path] = {}
    _collect(folder, "", (folder.resolve(),), found, inside=True)
    return found


def _collect(folder: Path, name: str, above: tuple[Path, ...], found: dict[str, Path], *, inside: bool) -> None:
    """Add the classes in `folder` to `found`; `above` are its resolved parents."""
    children = sorted(folder.iterdir())
    is_class = name != "" and any(_is_image(child) for child in children)
    folders = [c for c in children if c.is_dir() and not c.name.startswith(".") and c.name != "__MACOSX"]
    if is_class or not (folders or inside):
        found[name] = folder
    for child in folders:
        real = child.resolve()
        if real not in above:  # a link to a folder above it would recurse without end
            _collect(
                child,
                f"{name}/{child.name}".lstrip("/"),
                (*above, real),
                found,
                inside=is_class or (inside and name != ""),
            )


def _is_image(path: Path) -> bool:
    """Whether a file is an image by its name; archives made on macOS have a "._x.jpg" beside "x.jpg".

    Folders and pipes are none, whatever their names: reading a pipe may never end. A link that leads nowhere is one;
    reading it says what is wrong.
    """
    named = path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    return named and (path.is_file() or not path.exists())
