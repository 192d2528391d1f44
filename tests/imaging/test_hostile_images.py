"""Image files made to cost a library far more time or memory than their size suggests are refused."""

import io
import struct
import time
import tracemalloc
import zlib

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from comln_serve.imaging import DEFAULT_MAX_PIXELS, open_image
from comln_serve.imaging.boxes import announced_pixels
from comln_serve.imaging.jpeg import passes
from tests.imaging.test_imaging import fails
from tests.support.hostile_files import (
    bmp_in_runs,
    exif_of,
    jpeg,
    jpeg_of_scans,
    jpeg_of_segments,
    jpeg_of_separate_scans,
    noise,
    padded_jpeg,
    plain,
    png_of_chunks,
)
from tests.support.image_files import box, encode, png_chunk, tiff, tiff_of, with_size, with_text
from tests.support.processes import forget_the_highest, memory

LIMIT = 20_000
SIDE = 200  # squared over the limit
# The tags of a TIFF of 4 by 4 grey pixels.
PAGE = {256: (4, (4,)), 257: (4, (4,)), 258: (3, (8,)), 259: (3, (1,)), 262: (3, (1,))}


START = box(b"ftyp", b"heic\0\0\0\0mif1heic")


def long_box(kind: bytes, body: bytes) -> bytes:
    """With a length of 64 bits."""
    return struct.pack(">I4sQ", 1, kind, len(body) + 16) + body


def heif(
    listed: int, metadata: int, overlap: int = 1, *, wide: bool = False, hidden: bool = False, profile: int = 0
) -> bytes:
    """Boxes of a HEIC file that lists pictures, one colour profile, and one block of metadata, read `overlap` times.

    Args:
        wide: all boxes are in the forms with the longest numbers.
        hidden: the pictures are marked as not to be shown.
    """
    make, number = (long_box, "I") if wide else (box, "H")
    kinds = [b"hvc1"] * listed + [b"Exif"]
    infos = [
        make(b"infe", struct.pack(f">I{number}H4sx", (2 + wide) << 24 | hidden, n, 0, kind))
        for n, kind in enumerate(kinds, 1)
    ]
    if wide:
        places = struct.pack(">IHIIHHQH", 2 << 24, 0x8484, 1, len(kinds), 0, 0, 0, overlap)
        places += overlap * struct.pack(">IQI", 0, 0, metadata)
    else:
        places = struct.pack(">IHHHHH", 0, 0x4400, 1, len(kinds), 0, overlap)
        places += overlap * struct.pack(">II", 0, metadata)
    meta = [
        make(b"iinf", struct.pack(f">I{number}", wide << 24, len(infos)) + b"".join(infos)),
        make(b"iloc", places),
        make(b"iprp", make(b"ipco", make(b"ispe", struct.pack(">III", 0, 64, 48)) + make(b"colr", bytes(profile)))),
    ]
    return START + make(b"meta", bytes(4) + b"".join(meta)) + make(b"mdat", bytes(metadata))


@pytest.mark.parametrize("fmt", ["HEIC", "AVIF"])
def test_size_of_the_container_is_refused_before_decoding(fmt: str) -> None:
    data = encode(plain(), fmt)
    assert open_image(data).pixels >= SIDE * SIDE
    error = fails(with_size(data, (SIDE, SIDE), (9_000, 8_000)), "image_too_large")
    assert error.detail == {"received_pixels": 72_000_000, "allowed_pixels": DEFAULT_MAX_PIXELS}


@pytest.mark.parametrize("big", [False, True])
def test_size_of_a_tiff_is_refused_before_decoding(big: bool) -> None:
    data = tiff_of(np.zeros((4, 4, 3), np.uint8), big=big, t256=12_000, t257=12_000)
    error = fails(data, "image_too_large")
    assert error.detail["allowed_pixels"] == DEFAULT_MAX_PIXELS


def test_an_avif_coded_larger_than_it_says_is_refused() -> None:
    """libavif would decode all of it and scale it down."""
    data = with_size(encode(plain(), "AVIF"), (SIDE, SIDE), (64, 64))
    error = fails(data, "image_too_large", max_pixels=LIMIT)
    assert error.detail["received_pixels"] == SIDE * SIDE


def test_an_avif_sequence_coded_larger_than_it_says_is_refused() -> None:
    data = encode(plain(), "AVIF", save_all=True, append_images=[plain().rotate(1)])
    size = struct.pack(">II", SIDE << 16, SIDE << 16)  # of the track; within `ispe`, too
    assert data.count(size) == 2
    smaller = data.replace(size, struct.pack(">II", 64 << 16, 64 << 16))
    fails(smaller, "image_too_large", max_pixels=LIMIT)
    # Without the picture beside the sequence, which is its first one.
    alone = smaller.replace(b"av01", b"none", 1)
    (begin,) = struct.unpack_from(">I", alone, alone.index(b"stco") + 12)
    far = alone.replace(b"stco", b"free") + box(b"co64", struct.pack(">IIQ", 0, 1, begin))
    beside_a_shorter_one = alone + box(b"stsz", struct.pack(">II", 0, 1))
    for sequence in (alone, far, beside_a_shorter_one):
        assert announced_pixels(sequence) == SIDE * SIDE


def test_a_sequence_with_transparency_whose_first_picture_is_most_of_the_file_is_decoded() -> None:
    """Its two tracks are each taken to begin with a picture as long as that one."""
    still = noise().convert("RGBA")
    still.putalpha(128)
    assert open_image(encode(still, "AVIF", save_all=True, append_images=[still])).decode().size == (64, 64)


def test_a_heic_coded_larger_than_it_says_is_refused() -> None:
    fails(with_size(encode(plain(), "HEIC"), (SIDE, SIDE), (64, 64)))


def test_a_cropped_picture_counts_with_what_is_decoded() -> None:
    """The library tells the size that is left."""
    data = encode(plain(), "HEIC")
    crop = struct.pack(">8I", 16, 1, 16, 1, 0, 1, 0, 1)
    odd = encode(plain(SIDE - 1), "HEIC")  # has a crop already, of one row and column
    at = odd.index(b"clap") + 4
    cropped = odd[:at] + crop + odd[at + len(crop) :]
    opened = open_image(cropped)
    assert opened.picture.size == (16, 16)
    assert opened.pixels >= (SIDE - 1) ** 2
    fails(cropped, "image_too_large", max_pixels=LIMIT)
    assert open_image(data).decode().size == (SIDE, SIDE)


@pytest.mark.parametrize("wide", [False, True])
def test_metadata_is_not_read_for_any_number_of_pictures(wide: bool) -> None:
    for harmless in (
        heif(listed=20, metadata=200_000, wide=wide),
        heif(listed=900, metadata=200_000, wide=wide, hidden=True),
        heif(listed=900, metadata=8, wide=wide),
    ):
        assert announced_pixels(harmless) == 64 * 48
    for many in (
        heif(listed=900, metadata=200_000, wide=wide),
        heif(listed=900, metadata=8, wide=wide, profile=200_000),
    ):
        with pytest.raises(ValueError, match="900 pictures"):
            announced_pixels(many)


@pytest.mark.parametrize("wide", [False, True])
def test_the_same_bytes_are_not_read_any_number_of_times(wide: bool) -> None:
    assert announced_pixels(heif(listed=1, metadata=100_000, overlap=2, wide=wide)) == 64 * 48
    assert announced_pixels(heif(listed=1, metadata=50_000, overlap=4, wide=wide, profile=60_000)) == 64 * 48
    with pytest.raises(ValueError, match="more bytes than the file has"):
        announced_pixels(heif(listed=1, metadata=100_000, overlap=32, wide=wide))


def test_a_length_of_zero_is_that_of_the_file() -> None:
    place = struct.pack(">II", 0, 100_000)
    whole = heif(listed=1, metadata=100_000, overlap=32).replace(place, struct.pack(">II", 0, 0))
    with pytest.raises(ValueError, match="more bytes than the file has"):
        announced_pixels(whole)


@pytest.mark.parametrize("fmt", ["HEIC", "AVIF"])
def test_the_last_box_may_end_with_the_file(fmt: str) -> None:
    data = encode(plain(), fmt)
    at = data.index(b"mdat") - 4
    assert open_image(data[:at] + bytes(4) + data[at + 4 :]).decode().size == (SIDE, SIDE)


def test_a_box_shorter_than_its_head_is_refused() -> None:
    for head in (struct.pack(">I4s", 7, b"colr"), struct.pack(">I4sQ", 1, b"colr", 15)):
        with pytest.raises(ValueError, match="shorter than its own head"):
            announced_pixels(START + head + heif(listed=1, metadata=8)[len(START) :])


def composed(content: bytes, kind: bytes = b"grid", idat: str = "", *, early: bool = False) -> bytes:
    """Boxes of a HEIC file with a picture that is composed of others, as its content says.

    Args:
        early: the list of what is where is in its first version, with offsets from a base, and sets bits that have a
            meaning only later.
        idat: where the box is that the content is in: "before" or "behind" the list of what is where; else it is behind
            all boxes.
    """
    info = box(b"infe", struct.pack(">IHH4sx", 2 << 24, 1, 0, kind))
    listed = box(b"iinf", struct.pack(">IH", 0, 1) + info) + box(b"ispe", struct.pack(">III", 0, 64, 48))

    def meta(at: int) -> bytes:
        where = struct.pack(">IHHHHHHII", 1 << 24, 0x4400, 1, 1, bool(idat), 0, 1, at, len(content))
        if early:
            where = struct.pack(">IHHHHIHII", 0, 0x4444, 1, 1, 0, at // 2, 1, at - at // 2, len(content))
        inside = box(b"idat", content)
        before, behind = inside if idat == "before" else b"", inside if idat == "behind" else b""
        return box(b"meta", bytes(4) + listed + before + box(b"iloc", where) + behind)

    at = 0 if idat else len(START + meta(0)) + 8
    return START + meta(at) + box(b"mdat", b"" if idat else content)


@pytest.mark.parametrize("idat", ["", "before", "behind"])
def test_a_picture_composed_of_tiles_counts_with_all_of_them(idat: str) -> None:
    for wide in (False, True):
        content = bytes([0, wide, 9, 9]) + struct.pack(">II" if wide else ">HH", 9_000, 8_000)
        assert announced_pixels(composed(content, idat=idat)) == 72_000_000
    assert announced_pixels(composed(content, early=True)) == 72_000_000
    with pytest.raises(ValueError, match="ends too early"):
        announced_pixels(composed(b"\0", idat=idat))
    with pytest.raises(ValueError, match="collage"):
        announced_pixels(composed(content, b"iovl", idat))


@pytest.mark.parametrize("nested", [False, True])
def test_endless_boxes_are_refused_in_bounded_time(nested: bool) -> None:
    start = box(b"ftyp", b"avif\0\0\0\0avifmif1")
    if nested:
        size = 100_000
        boxes = b"".join(struct.pack(">I4s4x", size - 12 * n, b"meta") for n in range(5000))
    else:
        boxes = box(b"free", b"") * 1_000_000
    began = time.monotonic()
    fails(start + boxes)
    assert time.monotonic() - began < 1


def av1(
    streams: list[bytes], sequences: int = 0, locations: int = 1, extents: int = 1, offsets: bytes = b"stco"
) -> bytes:
    """Boxes of an AVIF file that lists a picture for each stream, all its locations so many times, and in them so many
    extents; and sequences that each begin with all that the file has.
    """
    infos = [box(b"infe", struct.pack(">IHH4sx", 2 << 24, n, 0, b"av01")) for n in range(1, len(streams) + 1)]
    listed = box(b"iinf", struct.pack(">IH", 0, len(infos)) + b"".join(infos))
    first = struct.pack(">III" if offsets == b"stco" else ">IIQ", 0, 1, 0)
    track = box(offsets, first) + box(b"stsz", struct.pack(">II", 0, 2**31))

    def meta(at: int) -> bytes:
        places = [
            struct.pack(">HHH", n, 0, extents) + extents * struct.pack(">II", at, len(stream))
            for n, stream in enumerate(streams, 1)
        ]
        where = box(b"iloc", struct.pack(">IHH", 0, 0x4400, len(streams)) + b"".join(places))
        return box(b"meta", bytes(4) + listed + locations * where) + sequences * track

    start = box(b"ftyp", b"avif\0\0\0\0avifmif1")
    return start + meta(len(start + meta(0)) + 8) + box(b"mdat", max(streams, key=len))


UNIT = bytes([0x0A, 1, 0b00000011])  # a sequence header with a size
# One with timing information, 64 bits, and then a number that begins with endless zeros.
ENDLESS = bytes([0x08, 0b00000100, *bytes(7), 0b00000010]) + bytes(200_000) + b"\xff" * 200_000


@pytest.mark.parametrize(
    "data",
    [
        av1([ENDLESS]),
        av1([UNIT * 9000]),
        av1([UNIT * 900] * 20),
        av1([UNIT + bytes(2_000_000)], sequences=2000),
        av1([UNIT + bytes(2_000_000)], sequences=2000, offsets=b"co64"),
        av1([UNIT] * 10, locations=150, extents=1500),
    ],
    ids=["endless number", "headers", "headers of many pictures", "sequences", "far sequences", "extents"],
)
def test_an_avif_that_is_long_to_read_is_refused_in_bounded_time(data: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"no value|headers|more bytes|too long"):
        announced_pixels(data)
    assert time.monotonic() - began < 1


def test_a_tile_larger_than_its_picture_is_refused() -> None:
    samples = np.zeros((16, 16, 3), np.uint8)
    data = tiff_of(samples, t322=30_000, t323=30_000)
    error = fails(data, "image_too_large")
    assert error.detail["received_pixels"] == 900_000_000
    assert open_image(tiff_of(samples)).pixels == 256


@pytest.mark.parametrize("tag", [273, 258, 320, 339, 282])
def test_a_tag_of_very_many_numbers_is_refused(tag: int) -> None:
    numbers = {325: (4, (0,) * 1_000_000)} if tag == 273 else {tag: (3, (1,) * 1_000_000)}
    data = tiff({**PAGE, **numbers}, bytes(16))
    assert fails(data).detail["received_format"] == "TIFF"


def test_metadata_of_very_many_numbers_is_refused() -> None:
    """Turning a picture upright reads the EXIF directory in full."""
    exif = struct.pack("<HHHII", 1, 37500, 4, 1_000_000, 8) + bytes(4)
    data = tiff({**PAGE, 274: (3, (6,)), 34665: (4, (8 + 16,))}, bytes(16) + exif)
    assert fails(data).detail["received_format"] == "TIFF"


def test_pages_beyond_the_first_cost_nothing() -> None:
    pages = [Image.new("L", (4, 4), n % 256) for n in range(200)]
    data = encode(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    began = time.monotonic()
    assert open_image(data).decode().getpixel((0, 0)) == (0, 0, 0)
    assert time.monotonic() - began < 0.2


def test_a_page_that_points_to_itself_ends_the_file() -> None:
    data = bytearray(tiff_of(np.zeros((4, 4), np.uint8)))
    (directory,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, directory)
    struct.pack_into("<I", data, directory + 2 + 12 * entries, directory)
    assert open_image(bytes(data)).decode().size == (4, 4)


def test_unknown_compressions_are_refused() -> None:
    for compression in (2, 34676, 65000):
        fails(tiff_of(np.zeros((4, 4, 3), np.uint8), t259=compression))


def test_a_strip_that_unpacks_to_too_much_is_cut() -> None:
    """A strip that unpacks to more than its rows hold."""
    image = Image.new("L", (64, 64), 7)
    data = encode(image, "TIFF", compression="tiff_adobe_deflate")
    bomb = io.BytesIO()
    Image.new("L", (64, 60_000), 7).save(bomb, "TIFF", compression="tiff_adobe_deflate")
    large = bytearray(bomb.getvalue())
    at = large.index(struct.pack("<HHI", 257, 3, 1))
    struct.pack_into("<I", large, at + 8, 64)
    assert open_image(data).decode().size == (64, 64)
    assert open_image(bytes(large)).pixels == 64 * 64


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    assert open_image(jpeg_of_scans(0)).decode().size == (64, 64)
    error = fails(jpeg_of_scans(10_000), "invalid_image")
    assert "scans, at most 200 are allowed" in error.message


def test_what_is_behind_a_jpeg_s_picture_does_not_count() -> None:
    """The video of a motion photo has the two bytes that begin a scan, by chance, once in 64 kB."""
    photo = encode(plain(), "JPEG", exif=exif_of(20))
    assert counted(photo + 300 * b"\xff\xda" + 5 * photo) == 25 * 25


def test_exif_data_in_many_segments_are_refused() -> None:
    """Pillow puts them together."""
    data = encode(plain(), "JPEG", exif=exif_of(20))
    assert data.count(b"Exif") == 1
    start = data.index(b"\xff\xe1")
    segment = data[start : start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")]
    assert "EXIF data are in 6 segments" in fails(data[:start] + 5 * segment + data[start:], "invalid_image").message
    # Pillow looks for segments inside of this one, and finds those after what looks like a scan.
    hidden = b"\xff\xfe\0\x06\xff\xda\0\0"
    data = data[:start] + b"\xff\xf0\0\x06" + hidden + 5 * segment + data[start:]
    assert "EXIF data are in 6 segments" in fails(data, "invalid_image").message


def counted(data: bytes) -> int:
    """The pixels that a file counts as, where 20 x 20 are enough of it. Its picture must be decoded."""
    opened = open_image(data, enough=20)
    opened.decode()
    return opened.pixels


def test_a_jpeg_that_is_not_read_row_by_row_counts_with_its_full_size() -> None:
    """libjpeg keeps all its coefficients, whatever the size it is decoded at: 6 bytes a pixel."""
    row_by_row = encode(plain(), "JPEG")
    assert counted(row_by_row) == 25 * 25
    assert counted(row_by_row[:2] + 9 * b"\xff" + row_by_row[2:]) == 25 * 25
    assert counted(row_by_row + jpeg_of_separate_scans(SIDE)) == 25 * 25, "as phones put further pictures behind"
    assert counted(jpeg_of_separate_scans(SIDE)) == SIDE * SIDE
    assert counted(encode(plain(), "JPEG", progressive=True)) == SIDE * SIDE


@pytest.mark.parametrize("data", [jpeg_of_scans(150, plain()), jpeg_of_separate_scans(SIDE, 160)])
def test_a_jpeg_of_many_scans_counts_as_larger(data: bytes) -> None:
    """Each takes a pass over all pixels. A tenant whose images take a second leaves others few turns."""
    assert counted(data) == 10 * SIDE * SIDE


def test_a_header_in_which_the_first_scan_is_not_found_counts_with_the_full_size() -> None:
    data = encode(plain(), "JPEG")
    assert counted(data[:2] + b"\xff\0" + data[2:]) == SIDE * SIDE


@pytest.mark.parametrize("data", [padded_jpeg(), jpeg_of_segments()])
def test_a_header_in_very_many_pieces_is_not_read_to_its_end(data: bytes) -> None:
    """Sixteen megabytes of them would take seconds."""
    assert passes(data) == 1


def test_a_large_bmp_in_runs_is_refused() -> None:
    """Pillow decodes runs in Python, a second for a million pixels."""
    assert open_image(bmp_in_runs(1000, 500)).decode().size == (1000, 500)
    assert "compressed in runs" in fails(bmp_in_runs(1001, 1000), "invalid_image").message
    assert open_image(encode(plain(1200), "BMP")).decode().size == (1200, 1200)
    assert counted(bmp_in_runs(500, 500)) == 16 * 500 * 500


@pytest.mark.parametrize(
    ("what", "data"), [("padding", padded_jpeg()), ("segments", jpeg_of_segments()), ("chunks", png_of_chunks())]
)
def test_a_header_in_very_many_pieces_is_refused(what: str, data: bytes) -> None:
    """Pillow reads each of them by itself, in Python."""
    assert "thousands of pieces" in fails(data, "invalid_image").message, what


def test_very_many_pieces_behind_the_pixels_are_refused() -> None:
    data = encode(plain(), "PNG")
    assert (
        "thousands of pieces"
        in fails(data[:-12] + 100_000 * png_chunk(b"prVt", b"") + data[-12:], "invalid_image").message
    )
    small = Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 600), dtype=np.uint8))
    gif = encode(small, "GIF")
    assert len(gif) > 300_000, "its pixels are in pieces of 255 bytes"
    assert open_image(gif).decode().size == (600, 600)


@pytest.mark.parametrize("behind", [b"IHDR", b"IDAT"])
@pytest.mark.parametrize("name", [b"bit_depth", b"exif", b"transparency", b"progressive", b"icc_profile", b"gamma"])
def test_texts_named_as_what_pillow_keeps_beside_them_change_nothing(name: bytes, behind: bytes) -> None:
    for mode in ("RGB", "L", "P", "I;16"):
        opened = open_image(with_text(encode(Image.new(mode, (SIDE, SIDE), 7), "PNG"), name, behind))
        assert opened.pixels == SIDE * SIDE
        assert opened.decode().size == (SIDE, SIDE)
        assert opened.pixels == SIDE * SIDE


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP"])
def test_exif_of_very_many_tags(fmt: str, order: str) -> None:
    """Pillow reads all those of a JPEG when it opens the file, and warns of each that is broken."""
    picture = plain(20).resize((20, 10))
    assert open_image(encode(picture, fmt, exif=exif_of(20, order))).decode().size == (10, 20)
    data = encode(picture, fmt, exif=exif_of(5000, order))
    if fmt == "JPEG":
        assert "has 5000 entries" in fails(data, "invalid_image").message
    else:
        assert open_image(data).decode().size == (10, 20)


def test_exif_data_of_megabytes_are_refused_where_pillow_reads_them() -> None:
    """A tag of two million fractions kept it busy for seconds."""
    segment = b"\xff\xe1" + struct.pack(">H", 60_008) + b"Exif\0\0" + bytes(60_000)
    data = jpeg()
    assert open_image(data[:2] + 4 * segment + data[2:]).decode().size == (64, 64)
    assert "in 5 segments" in fails(data[:2] + 5 * segment + data[2:], "invalid_image").message
    for size in (200_000, 300_000):
        exif = Image.Exif()
        exif[37500] = bytes(size)
        avif = encode(plain(), "AVIF", exif=exif)
        if size < 2**18:
            assert open_image(avif).decode().size == (SIDE, SIDE)
        else:
            assert "bytes of EXIF data, at most" in fails(avif, "invalid_image").message


def test_megabytes_of_prefixes_before_exif_data() -> None:
    png = encode(plain(20).resize((20, 10)), "PNG", exif=2_000_000 * b"Exif\0\0" + exif_of(20))
    assert open_image(png).decode().size == (10, 20)


def test_very_many_rows_of_one_pixel_are_refused() -> None:
    """Pillow keeps a pointer for each row: such a file took half as much memory again as one that is square."""
    most = 1_000_000

    def column(height: int) -> bytes:
        rows = zlib.compress(b"\0\0" * height, 9)
        head = struct.pack(">IIBBBBB", 1, height, 8, 0, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")

    error = fails(column(most), "image_too_large", max_pixels=most)
    assert "1 x 1000000, whose rows count as 2 pixels each: 2000000 pixels; at most 1000000" in error.message
    error = fails(encode(Image.new("L", (2, 600)), "PNG"), "image_too_large", max_pixels=1000)
    assert "2 x 600 = 1200 pixels" in error.message
    assert open_image(column(most // 2), max_pixels=most).decode().size == (1, most // 2)
    assert open_image(encode(plain(1000), "PNG"), max_pixels=most).decode().size == (1000, 1000)


def test_a_waiting_jpeg_keeps_no_copy_of_its_colour_profile() -> None:
    data = encode(plain(), "JPEG", progressive=True, icc_profile=bytes(10_000_000))
    tracemalloc.start()
    file = open_image(data)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000
    assert file.decode().size == (200, 200)


def test_a_waiting_gif_keeps_no_picture_for_a_second_frame() -> None:
    frame = struct.pack("<HHHH", 0, 0, 8000, 8000) + b"\0\2\0"
    data = b"GIF89a" + struct.pack("<HH", 8000, 8000) + bytes(3) + b"!\xf9\4\x08\0\0\0\0," + frame + b";"
    before = forget_the_highest("self")
    file = open_image(data)
    assert file.pixels == 64_000_000
    assert memory("self", "VmHWM") - before < 20_000_000


def test_a_waiting_heic_keeps_no_metadata_of_its_other_pictures() -> None:
    pictures = pillow_heif.HeifFile()
    for _ in range(10):
        picture = plain()
        picture.info["xmp"] = bytes(300_000)
        pictures.add_from_pillow(picture)
    buffer = io.BytesIO()
    pictures.save(buffer)
    data = buffer.getvalue()
    tracemalloc.start()
    file = open_image(data)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000
    assert file.decode().size == (SIDE, SIDE)
