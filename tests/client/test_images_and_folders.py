"""What becomes of images before they are sent, and how folders are read."""

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from comln_serve.client import BadImageError, InputError
from comln_serve.client.folders import read_class_folders, read_folder
from comln_serve.client.images import Source, prepare
from comln_serve.imaging import FORMATS
from tests.client.pictures import COLOURS, class_folder
from tests.support.image_files import encode, image_bytes
from tests.support.paths import REPOSITORY

ORIENTATION = 0x0112


def prepared(content: object, max_side: int | None = 32, formats: Sequence[str] = FORMATS) -> bytes:
    return prepare(Source("it", content), max_side, formats).content


def labels_of(images: Sequence[Source]) -> list[str | None]:
    return [image.label for image in images]


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def half_red(mode: str = "RGB", size: tuple[int, int] = (80, 40)) -> Image.Image:
    """Red above, blue below."""
    picture = Image.new("RGB", size, (255, 0, 0))
    picture.paste((0, 0, 255), (0, size[1] // 2, size[0], size[1]))
    return picture.convert(mode)


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "AVIF", "TIFF", "HEIC"])
def test_files_that_are_small_enough_are_sent_as_they_are(fmt: str) -> None:
    data = image_bytes(size=(32, 20), fmt=fmt)
    assert prepared(data) == data


@pytest.mark.parametrize("fmt", ["WEBP", "TIFF", "PPM"])
def test_formats_that_the_server_does_not_read_are_sent_as_png(fmt: str) -> None:
    data = image_bytes(size=(32, 20), fmt=fmt)
    sent = opened(prepared(data, formats=("JPEG", "PNG")))
    assert sent.format == "PNG"
    assert np.array_equal(np.asarray(sent.convert("RGB")), np.asarray(opened(data).convert("RGB")))


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "BMP", "AVIF", "TIFF"])
def test_larger_ones_are_shrunk(fmt: str) -> None:
    data = encode(half_red(), fmt)
    small = opened(prepared(data))
    assert (small.size, small.format) == ((32, 16), "JPEG")
    above, below = (np.asarray(small)[row, 16].astype(int) for row in (3, 12))
    assert above[0] > 200 > 60 > above[2]
    assert below[2] > 200 > 60 > below[0]
    assert prepared(data, None) == data


def test_orientation_is_kept() -> None:
    """A photo that lies on its side in the file is upright in what is sent."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # to be turned by 90 degrees
    data = encode(half_red(), "JPEG", exif=exif)
    small = opened(prepared(data))
    assert small.size == (16, 32)
    assert small.getexif().get(ORIENTATION) in (None, 1)
    right = np.asarray(small)[16, 13].astype(int)
    assert right[0] > 200 > 60 > right[2]  # what was above is on the right
    assert prepared(data, None) == data


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_kept(mode: str) -> None:
    picture = half_red("RGBA")
    picture.putalpha(Image.new("L", picture.size, 0))
    small = opened(prepared(encode(picture.convert(mode), "PNG")))
    assert (small.format, small.size) == ("PNG", (32, 16))
    assert np.asarray(small.convert("RGBA"))[..., 3].max() == 0


@pytest.mark.parametrize(("mode", "fmt"), [("I;16", "PNG"), ("CMYK", "JPEG")])
def test_what_only_the_server_can_convert_is_not_touched(mode: str, fmt: str) -> None:
    data = encode(Image.new(mode, (64, 64)), fmt)
    assert prepared(data) == data


@pytest.mark.parametrize("shape", [(20, 30, 3), (20, 30)])
def test_arrays_and_pictures_arrive_pixel_by_pixel(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    for content in (pixels, np.asfortranarray(pixels), Image.fromarray(pixels)):
        assert np.array_equal(np.asarray(opened(prepared(content))), pixels)
    assert opened(prepared(np.zeros((64, 128, 3), np.uint8))).size == (32, 16)


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP"])
def test_truncated_files_are_found_where_they_are_shrunk(fmt: str) -> None:
    """Others are sent: the server looks at every pixel anyway."""
    data = image_bytes(size=(30, 30), fmt=fmt)
    with pytest.raises(BadImageError, match=r"it: is (damaged or too large|no image)"):
        prepared(data[: len(data) // 2], 10)


def test_classes_of_a_folder(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", each=2)
    (root / "blue" / "2.png").write_bytes(image_bytes())
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "0.JPG").write_bytes(b"any")
    for litter in (".hidden.png", "Thumbs.db", "blue/.DS_Store"):
        (root / litter).write_bytes(b"")
    (root / "blue" / "notes.txt").write_bytes(b"")
    (root / "loose.png").write_bytes(b"")
    (root / "red" / "round").symlink_to(root)
    images, skipped = read_class_folders(root)
    # One of each class, then the next of each.
    assert labels_of(images) == ["blue", "deep/er", "green", "red", "blue", "green", "red", "blue"]
    assert [Path(image.name).name for image in images] == [
        "0.png",
        "0.JPG",
        "0.png",
        "0.png",
        "1.png",
        "1.png",
        "1.png",
        "2.png",
    ]
    assert {Path(item.image).name: item.reason.split()[1] for item in skipped} == {
        "notes.txt": "no",
        "loose.png": "beside",
    }
    inside, others = read_folder(root)
    assert {Path(image.name).name for image in inside} == {"0.png", "1.png", "2.png", "0.JPG", "loose.png"}
    assert [Path(item.image).name for item in others] == ["notes.txt"]


def test_what_cannot_be_read_as_a_file_is_left_out(tmp_path: Path) -> None:
    """A pipe would be waited for until somebody writes to it."""
    root = class_folder(tmp_path / "photos", each=1)
    os.mkfifo(root / "red" / "pipe.png")
    (root / "red" / "link.png").symlink_to("gone.png")
    (root / "blue" / "again.png").symlink_to(root / "blue" / "0.png")
    images, skipped = read_class_folders(root)
    assert sorted(Path(image.name).name for image in images) == ["0.png"] * 3 + ["again.png"]
    assert [Path(item.image).name for item in skipped] == ["link.png", "pipe.png"]
    assert all("a broken link, a pipe" in item.reason for item in skipped)
    assert read_folder(root)[1] == skipped


def test_a_folder_that_may_be_listed_but_not_entered(tmp_path: Path) -> None:
    """In another process: root is refused nothing until it gives that up."""
    root = class_folder(tmp_path / "photos", each=1)
    (root / "red").chmod(0o444)
    script = f"""
import os
if os.getuid() == 0:
    os.chown({str(root)!r}, 65534, 65534), os.chown({str(root / "red")!r}, 65534, 65534)
    os.chmod({str(root)!r}, 0o755)
from comln_serve.client.folders import read_folder
if os.getuid() == 0:
    os.chdir({str(root)!r})
    os.setuid(65534)
print([(item.image, item.reason[:40]) for item in read_folder(".")[1]])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    (root / "red").chmod(0o755)
    assert done.stdout == "[('red/0.png', 'is no file that can be read: a broken li')]\n", done.stderr


def test_very_deep_folders(tmp_path: Path) -> None:
    """Deeper than Python's limit of recursion."""
    root = folder = class_folder(tmp_path / "photos", each=1)
    for _ in range(1100):
        folder /= "d"
        folder.mkdir()
    (folder / "0.png").write_bytes(image_bytes())
    assert len(read_folder(root)[0]) == 4
    assert set(labels_of(read_class_folders(root)[0])) == {*COLOURS, folder.relative_to(root).as_posix()}
    (folder / "0.png").unlink()
    os.removedirs(folder)  # pytest could not: Python 3.11 removes folders by recursion


@pytest.mark.parametrize("names", [("train", "test"), ("Testing", "valid", "Training")])
def test_parts_of_a_data_set_are_not_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name / "lemon").mkdir(parents=True)
        (tmp_path / name / "lemon" / "1.png").write_bytes(b"")
    first = next(name for name in names if "train" in name.lower())
    with pytest.raises(InputError, match=rf"parts of a data set.*; give .*/{first} to adapt to, and ") as found:
        read_class_folders(tmp_path)
    assert str(found.value).rpartition("/")[2] in set(names) - {first}
    for name in names[1:]:  # one alone may be a class
        (tmp_path / name).rename(tmp_path / f"{name}s")
    labels = labels_of(read_class_folders(tmp_path)[0])
    assert set(labels) == {f"{names[0]}/lemon", *(f"{name}s/lemon" for name in names[1:])}


def test_folders_that_have_no_classes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone: there is no such folder"):
        read_class_folders(tmp_path / "gone")
    with pytest.raises(InputError, match=r"there is no folder of images in it; expected .*/<class>/<image>"):
        read_class_folders(tmp_path)
    (file := tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match="is a file, not a folder"):
        read_folder(file)
    with pytest.raises(InputError, match="there is no folder of images in it"):
        read_class_folders(tmp_path)
    class_folder(tmp_path / "photos")
    name = next(path.name for path in (tmp_path / "photos").iterdir())
    with pytest.raises(InputError, match=rf"photos/{name}: .* if it is a class, give the folder .*/photos$"):
        read_class_folders(tmp_path / "photos" / name)
    (tmp_path / "photos" / "empty").mkdir()
    (tmp_path / "photos" / "empty" / "notes.txt").write_bytes(b"")
    with pytest.raises(InputError, match="photos/empty: this class folder holds no image"):
        read_class_folders(tmp_path / "photos")
    images, skipped = read_class_folders(tmp_path / "photos", every_class=False)
    assert set(labels_of(images)) == set(COLOURS)
    assert [one.image for one in skipped] == [
        str(tmp_path / "photos" / "empty" / "notes.txt"),
        str(tmp_path / "photos" / "empty"),
    ]
    with pytest.raises(InputError, match="empty: there is no image in it"):
        read_folder(tmp_path / "photos" / "empty")


def test_jpegs_as_some_browsers_save_them(tmp_path: Path) -> None:
    (tmp_path / "a.jfif").write_bytes(image_bytes())
    images, _ = read_folder(tmp_path)
    assert [Path(image.name).name for image in images] == ["a.jfif"]


@pytest.mark.parametrize(("position", "byte"), [(17, 0), (41, 13)])  # of the entries' numbers and types
def test_damaged_exif_data_do_not_matter(position: int, byte: int) -> None:
    """As on the server: such a picture is taken as it lies."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    exif[0x010E] = "a description"
    exif[0x011A] = 72.0  # a resolution
    data = bytearray(encode(half_red(), "JPEG", exif=exif))
    data[data.index(b"Exif") + position] = byte
    with pytest.raises(Exception, match=r"argument|attribute|operand"):
        ImageOps.exif_transpose(opened(bytes(data)))
    assert opened(prepared(bytes(data))).size == (32, 16)


def test_a_folder_that_is_called_like_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files have names, unlike an image in a data URL."""
    monkeypatch.chdir(tmp_path)
    folder = class_folder(Path("data:photos"), each=1)
    for images, _ in (read_class_folders(folder), read_folder(folder)):
        assert [image.name for image in images] == [f"data:photos/{label}/0.png" for label in sorted(COLOURS)]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    folder = class_folder(tmp_path / "photos", each=1)
    (folder / "red" / f"{name}.png").write_bytes(b"none")
    images, _ = read_class_folders(folder)
    assert any(image.name.endswith(r"caf\xe9.png") for image in images)
    (folder / "red").rename(folder / name)
    with pytest.raises(InputError, match="not valid Unicode"):
        read_class_folders(folder)
