"""Recognises the format of a file by its first bytes, and says what to do about one that is not read."""

from collections.abc import Sequence
from importlib.util import find_spec

from PIL import features

from comln_serve.imaging.errors import ImageError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "HEIC", "AVIF", "TIFF")

_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}
_AVIF_BRANDS = {b"avif", b"avis"}
_HEIF_BRANDS = {b"mif1", b"msf1"}  # the container of both, with any codec
_BRANDS_READ = 64

# First bytes, and the format that begins with them: accepted formats, and others that users send by mistake.
_BEGINNINGS = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\0\x10\0\0\0CR", "camera raw"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"FUJIFILMCCD-RAW", "camera raw"),
    (b"IIRO", "camera raw"),
    (b"IIU\0", "camera raw"),
    (b"8BPS", "Photoshop"),
    (b"\0\0\1\0", "ICO"),
    (b"\x76\x2f\x31\x01", "OpenEXR"),
    (b"%PDF-", "PDF"),
    (b"%!PS", "PostScript"),
    (b"PK\3\4", "ZIP"),
    (b"7z\xbc\xaf", "7-Zip"),
    (b"\x1f\x8b", "gzip"),
    (b"\x1a\x45\xdf\xa3", "WebM or Matroska video"),
    (b"\x93NUMPY", "NumPy array"),
    (b"DDS ", "DDS"),
    (b"qoif", "QOI"),
    (b"BPG\xfb", "BPG"),
    (b"#?RADIANCE", "Radiance HDR"),
    (b"SIMPLE  =", "FITS"),
    (b"BM", "BMP"),
    *((b"P%d%c" % (kind, blank), "PPM") for kind in range(1, 8) for blank in b" \n\r\t"),
)
_TEXTS = ((b"<svg", "SVG"), (b"<!doctype html", "HTML"), (b"<html", "HTML"), (b"data:image/", "data URL"))
_AFTER_128 = ((b"DICM", "DICOM"),)

_IN_WORDS = {"HEIC": "HEIC, the format of iPhone photos", "HTML": "HTML, a web page"}
# What to do about a file of these formats; others are to be converted.
_INSTEAD = {
    "HEIC": "Convert it to JPEG; an iPhone takes JPEG with Settings, Camera, Formats, Most Compatible.",
    "camera raw": "Develop it, and send the JPEG.",
    "PDF": "Send its pages as images.",
    "HTML": "Send the image itself; its address may have changed, or ask for a login.",
    "data URL": "Send the image's bytes, not their text.",
    **dict.fromkeys(("ZIP", "gzip", "7-Zip"), "Unpack it, and send the images in it."),
    **dict.fromkeys(
        ("MP4 or QuickTime video", "WebM or Matroska video", "AVI video"), "Send single pictures of it as images."
    ),
}


def recognise(data: bytes) -> str | None:
    """The format of a file by its first bytes: one of `FORMATS` or another; None: unknown."""
    if data[4:8] == b"ftyp":
        return _of_brands(data)
    if data[:4] == b"RIFF":
        return {b"WEBP": "WEBP", b"AVI ": "AVI video"}.get(data[8:12])
    text = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"<?xml") and b"<svg" in text:
        return "SVG"
    for start, beginnings in ((data, _BEGINNINGS), (text, _TEXTS), (data[128:132], _AFTER_128)):
        for beginning, name in beginnings:
            if start.startswith(beginning):
                return name
    return None


def readable(formats: Sequence[str]) -> tuple[str, ...]:
    """Those of the formats whose decoder is installed. Pillow may be built without some."""
    return tuple(name for name in formats if _has_decoder(name))


def not_accepted(kind: str, size: int, formats: Sequence[str]) -> ImageError:
    """The error for a file of `size` bytes that has none of the accepted `formats`: what it is, and what to do."""
    # Of whoever runs the server, not of whoever sent the file.
    missing = ", and HEIC where comln-serve[heic] is installed" if kind == "HEIC" and not _has_decoder(kind) else ""
    usual = [name for name in ("JPEG", "PNG") if name in formats] or formats[:2]
    instead = _INSTEAD.get(kind)
    if instead is None or ("JPEG" in instead and "JPEG" not in formats):
        instead = f"Convert it to {' or '.join(usual)}."
    what = _IN_WORDS.get(kind, kind)
    message = f"This is {what} ({size} bytes). Accepted are {', '.join(formats)}{missing}. {instead}"
    return ImageError("invalid_image", message, allowed_formats=list(formats), received_format=kind)


def _has_decoder(name: str) -> bool:
    if name == "HEIC":
        return find_spec("pillow_heif") is not None
    return name not in ("AVIF", "WEBP") or bool(features.check(name.lower()))


def parse_formats(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of formats. Returns them in the order of `FORMATS`.

    Raises:
        ValueError: the list is empty or has a name that is not in `FORMATS`.
    """
    names = {name.strip().upper() for name in text.split(",") if name.strip()}
    unknown = sorted(names - set(FORMATS))
    if unknown or not names:
        received = f"{', '.join(unknown)}: no such format" if unknown else "no format"
        raise ValueError(f"{received}; list one or more of {', '.join(FORMATS)}")
    return tuple(name for name in FORMATS if name in names)


def _of_brands(data: bytes) -> str:
    """The format of an ISO base media file, by the brands that its first box lists."""
    end = min(int.from_bytes(data[:4]), 16 + 4 * _BRANDS_READ)
    brands = [data[8:12], *(data[at : at + 4] for at in range(16, end, 4))]
    # The first brand is the file's own; the others name what else it is compatible with.
    for brand in brands:
        if brand in _AVIF_BRANDS:
            return "AVIF"
        if brand in _HEIC_BRANDS:
            return "HEIC"
    if brands[0] in _HEIF_BRANDS:
        return "HEIC"
    return "camera raw" if brands[0] == b"crx " else "MP4 or QuickTime video"
