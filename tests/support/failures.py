"""Requests that are refused, and how."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from comln_serve.errors import ErrorCode
from tests.support.image_files import png_claiming
from tests.support.messages import (
    GREEN,
    MAX_BODY,
    MAX_BYTES,
    MAX_IMAGES,
    MAX_LABEL,
    MAX_PIXELS,
    RED,
    Support,
    adapt_form,
    adapt_json,
    b64,
    file_part,
    flat_png,
    multipart,
    predict_form,
    predict_json,
    raw,
)


@dataclass(frozen=True)
class Failure:
    """A request and what must come of it."""

    name: str
    code: ErrorCode
    request: Callable[[], dict[str, Any]]
    path: str = "/adapt"
    method: str = "POST"
    says: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


def on_images() -> Iterator[Failure]:
    """What can be wrong with an image, in each route and encoding."""
    files = {
        "not an image": (b"hello", ErrorCode.INVALID_IMAGE, {"image": 1}),
        "empty image": (b"", ErrorCode.INVALID_IMAGE, {"image": 1}),
        "truncated": (RED[: len(RED) // 2], ErrorCode.INVALID_IMAGE, {"image": 1}),
        "bomb": (png_claiming(100_000, 100_000), ErrorCode.IMAGE_TOO_LARGE, {"image": 1}),
        "pixels": (
            flat_png(101, 100),
            ErrorCode.IMAGE_TOO_LARGE,
            {"image": 1, "received_pixels": 10_100, "allowed_pixels": MAX_PIXELS},
        ),
        "bytes": (
            bytes(MAX_BYTES + 1),
            ErrorCode.IMAGE_TOO_LARGE,
            {"received_bytes": MAX_BYTES + 1, "allowed_bytes": MAX_BYTES},
        ),
        # Within the limit of bytes in both encodings: what is wrong is the content.
        "bytes at the limit": (bytes(MAX_BYTES), ErrorCode.INVALID_IMAGE, {"image": 1}),
    }
    for name, (data, code, detail) in files.items():
        bad: Support = [(RED, "red"), (data, "green")]
        for encoding, adapt, predict in (("form", adapt_form, predict_form), ("json", adapt_json, predict_json)):
            yield Failure(f"{name} in {encoding}", code, lambda a=adapt, b=bad: a(b), detail=detail)
            yield Failure(f"{name} in {encoding}", code, lambda p=predict, d=data: p(RED, d), "/predict", detail=detail)


def on_limits() -> Iterator[Failure]:
    many = [(flat_png(4, 4), f"label {i}") for i in range(MAX_IMAGES + 1)]
    code, detail = ErrorCode.TOO_MANY_IMAGES, {"allowed_images": MAX_IMAGES}
    for count in (MAX_IMAGES + 1, MAX_IMAGES + 2, 5 * MAX_IMAGES):
        support = (many * 5)[:count]
        images = [data for data, _ in support]
        yield Failure(f"{count} form", code, lambda s=support: adapt_form(s), detail=detail)
        yield Failure(f"{count} json", code, lambda s=support: adapt_json(s), detail=detail)
        yield Failure(f"{count} form", code, lambda i=images: predict_form(*i), "/predict", detail=detail)
        yield Failure(f"{count} json", code, lambda i=images: predict_json(*i), "/predict", detail=detail)
    labels = [('"labels"', b"x")] * (MAX_IMAGES + 20)
    yield Failure("fields", code, lambda: multipart(*labels), detail=detail)

    code, detail = ErrorCode.BODY_TOO_LARGE, {"allowed_bytes": MAX_BODY}
    big = b"[" + b" " * MAX_BODY + b"]"
    parts = multipart(*[file_part(bytes(MAX_BYTES))] * 6)
    for path in ("/adapt", "/predict"):
        yield Failure("declared json", code, lambda: raw(big), path, detail=detail)
        yield Failure("streamed json", code, lambda: raw(in_pieces(big)), path, detail=detail)
        yield Failure("declared form", code, lambda: parts, path, detail=detail)
        yield Failure(
            "streamed form", code, lambda: {**parts, "content": in_pieces(parts["content"])}, path, detail=detail
        )
        lie = {"Content-Type": "application/json", "Content-Length": str(MAX_BODY + 1)}
        yield Failure(
            "declared only",
            code,
            lambda h=lie: {"content": b"{}", "headers": h},
            path,
            detail={"received_bytes": MAX_BODY + 1},
        )


def in_pieces(data: bytes) -> Iterator[bytes]:
    """Sent without a Content-Length."""
    return (data[i : i + 10_000] for i in range(0, len(data), 10_000))


def on_labels() -> Iterator[Failure]:
    code = ErrorCode.INVALID_REQUEST
    files = [file_part(RED), file_part(GREEN)]
    yield Failure("labels missing", code, lambda: multipart(*files), says="2 'images' and 0")
    for count in (1, 3):
        labels = [('"labels"', b"x")] * count
        yield Failure(
            f"{count} labels",
            code,
            lambda la=labels: multipart(*files, *la),
            says="one label for each image",
            detail={"received_images": 2, "received_labels": count},
        )
    yield Failure("no image", code, lambda: multipart(('"labels"', b"x")), says="0 'images'")
    labels_as_files = [('"labels"; filename="x"', b"a"), ('"labels"; filename="x"', b"b")]
    yield Failure("labels as files", code, lambda: multipart(*files, *labels_as_files), says="file name")
    bytes_ = [('"labels"', b"a"), ('"labels"', b"caf\xe9")]
    yield Failure("Latin-1 label", code, lambda: multipart(*files, *bytes_), says="not UTF-8")
    surrogate = [('"labels"', b"a"), ('"labels"', b"\xed\xa0\x80")]
    yield Failure("surrogate", code, lambda: multipart(*files, *surrogate), says="not UTF-8")
    for name, label, says in (
        ("empty", "", "blank"),
        ("blank", " \t\n", "blank"),
        ("no-break space", "\u00a0\u2003", "blank"),
        ("long", "x" * (MAX_LABEL + 1), f"at most {MAX_LABEL}"),
        ("very long", "x" * 70_000, ""),
    ):
        support: Support = [(RED, "red"), (GREEN, label)]
        yield Failure(f"{name} label, form", code, lambda s=support: adapt_form(s), says=says)
        yield Failure(f"{name} label, json", code, lambda s=support: adapt_json(s), says=says)
    item = {"image": b64(RED)}
    for name, support_json in (
        ("missing", [item]),
        ("number", [{**item, "label": 1}]),
        ("null", [{**item, "label": None}]),
        ("list", [{**item, "label": ["a"]}]),
    ):
        body = {"support": support_json}
        yield Failure(f"{name} label", code, lambda b=body: {"json": b}, says="support.0.label")
    escaped = json.dumps({"support": [{**item, "label": "\ud800"}]}).encode()
    yield Failure("lone surrogate", code, lambda: raw(escaped), says="hex escape")


def on_classes() -> Iterator[Failure]:
    code = ErrorCode.CANNOT_ADAPT
    one: Support = [(RED, "red"), (GREEN, "red")]
    for build in (adapt_form, adapt_json):
        yield Failure(
            f"one class {build.__name__}",
            code,
            lambda b=build: b(one),
            says="second one",
            detail={"received_classes": 1, "least_classes": 2},
        )
        yield Failure(
            f"wrong ways {build.__name__}",
            code,
            lambda b=build: b(model="tiny-learned"),
            says="tied to 5",
            detail={"received_classes": 2, "needed_classes": 5},
        )
        yield Failure(
            f"unknown model {build.__name__}",
            ErrorCode.MODEL_NOT_FOUND,
            lambda b=build: b(model="absent"),
            says="tiny-prototype",
        )
    yield Failure("no support", code, lambda: {"json": {"support": []}})
    for build in (predict_form, predict_json):
        yield Failure(
            f"unknown classifier {build.__name__}",
            ErrorCode.CLASSIFIER_NOT_FOUND,
            lambda b=build: b(RED, classifier="absent"),
            "/predict",
            says="'absent'",
        )


def on_fields() -> Iterator[Failure]:
    """Types and values of everything beside the images."""
    code = ErrorCode.INVALID_REQUEST
    horizons = [0, -1, 2e9, "abc", "Auto", True, "", [1], {}, float("nan"), float("inf"), -float("inf")]
    horizons += ["1_0", "\u0661\u0662"]  # Python reads them as numbers
    for horizon in horizons:
        body = json.dumps({**adapt_json()["json"], "horizon": horizon}).encode()
        yield Failure(f"horizon {horizon!r}", code, lambda b=body: raw(b), says="horizon")
        if not isinstance(horizon, list | dict):
            yield Failure(
                f"horizon {horizon!r}, form", code, lambda h=horizon: adapt_form(horizon=str(h)), says="horizon"
            )
    body = json.dumps(adapt_json()["json"]).encode()[:-1] + b', "horizon": 1e999}'
    yield Failure("horizon 1e999", code, lambda: raw(body), says="horizon")
    for top_k in (0, -1, 101, 10**30, 1.5, "x", None, [], 1e400):
        sent = json.dumps({**predict_json(RED)["json"], "top_k": top_k}).encode()
        yield Failure(f"top_k {top_k!r}", code, lambda s=sent: raw(s), "/predict", says="top_k")
        yield Failure(
            f"top_k {top_k!r}, form", code, lambda k=top_k: predict_form(RED, top_k=str(k)), "/predict", says="top_k"
        )
    for name in ("", " ", "a b", "clf_x", "x" * 65, ".x", "x\n", "\u00e9", "a/b"):
        yield Failure(f"name {name!r}", code, lambda n=name: adapt_json(name=n), says="name")
        yield Failure(f"name {name!r}, form", code, lambda n=name: adapt_form(name=n), says="name")
    for key, value in (("name", 1), ("model", 1), ("model", ["tiny"])):
        sent = json.dumps({**adapt_json()["json"], key: value}).encode()
        yield Failure(f"{key} {value!r}", code, lambda s=sent: raw(s), says=key)
    for value in (None, 1, ["known"], {}):
        sent = json.dumps({**predict_json(RED)["json"], "classifier": value}).encode()
        yield Failure(f"classifier {value!r}", code, lambda s=sent: raw(s), "/predict", says="classifier")
    yield Failure("classifier missing", code, lambda: {"json": {"images": [b64(RED)]}}, "/predict", says="classifier")
    yield Failure("classifier missing, form", code, lambda: multipart(file_part(RED)), "/predict", says="classifier")
    yield Failure("no images", code, predict_json, "/predict", says="No image")
    yield Failure("no images, form", code, lambda: multipart(('"classifier"', b"known")), "/predict", says="No image")

    for path, build in (("/adapt", adapt_json), ("/predict", lambda **o: predict_json(RED, **o))):
        yield Failure("unknown, json", code, lambda b=build: b(colour=1), path, says="colour")
    classifier = ('"classifier"', b"known")
    known = [file_part(RED), classifier]
    yield Failure(
        "unknown, form",
        code,
        lambda: multipart(*known, ('"labels"', b"x")),
        "/predict",
        says="allowed are images, classifier, top_k",
    )
    yield Failure(
        "unknown, form", code, lambda: adapt_form(colour="1"), says="allowed are images, labels, model, name, horizon"
    )
    yield Failure("nameless part", code, lambda: multipart(*known, ('""', b"x")), "/predict", says="Unknown")
    yield Failure("repeated", code, lambda: multipart(*known, classifier), "/predict", says="2 times")
    yield Failure("repeated horizon", code, lambda: adapt_form(horizon=["1", "2"]), says="2 times")
    yield Failure(
        "option as a file",
        code,
        lambda: multipart(file_part(RED), ('"classifier"; filename="x"', b"known")),
        "/predict",
        says="file name",
    )
    yield Failure("image as text", code, lambda: multipart(('"images"', RED), classifier), "/predict", says="as a file")


def on_new_labels() -> Iterator[Failure]:
    """Of `POST /classifiers/{ref}/labels`."""
    code, path = ErrorCode.INVALID_REQUEST, "/classifiers/known/labels"
    for value in (None, 1, "red", ["red"], [["red", "Red"]], {}):
        yield Failure(f"labels {value!r}", code, lambda v=value: {"json": {"labels": v}}, path, says="labels: ")
    for new in (None, 1, ["Red"], {}, "", " \t\n", "\u00a0\u2003"):
        sent = {"labels": {"green": "Green", "red": new, "blue": new}}
        yield Failure(f"new label {new!r}", code, lambda s=sent: {"json": s}, path, says="the new label of 'red'")
    for label, says in (
        ("x" * (MAX_LABEL + 1), f"Label 2 has {MAX_LABEL + 1} characters; at most {MAX_LABEL} are allowed"),
        ("x" * 70_000, f"at most {MAX_LABEL}"),
    ):
        sent = {"labels": {"green": "Green", "red": label}}
        yield Failure(f"{len(label)} characters", code, lambda s=sent: {"json": s}, path, says=says)
    many = {"labels": dict.fromkeys(map(str, range(5_000)), 1)}
    yield Failure("very many bad labels", code, lambda: {"json": many}, path, says="the new label of '0'")
    yield Failure("no labels", code, lambda: {"json": {"promote": False}}, path, says="labels")
    yield Failure("promote", code, lambda: {"json": {"labels": {"red": "x"}, "promote": "x"}}, path, says="promote")
    yield Failure("another field", code, lambda: {"json": {"labels": {"red": "x"}, "name": "x"}}, path, says="name")
    for name, content in (("empty", b""), ("text", b"red=Red"), ("array", b"[]"), ("null", b"null")):
        yield Failure(name, code, lambda c=content: raw(c), path)
    yield Failure("surrogate", code, lambda: raw(b'{"labels": {"red": "\\ud800"}}'), path, says="hex escape")
    yield Failure(
        "unknown labels",
        code,
        lambda: {"json": {"labels": {"red": "Red", "Green": "green", "x" * 1000: "y"}}},
        path,
        says="Its classes are 'red', 'green'.",
        detail={"received": ["Green", "x" * 100], "available": ["red", "green"]},
    )
    yield Failure(
        "nothing changed",
        code,
        lambda: {"json": {"labels": {"red": "red", "green": "green"}}},
        path,
        says="No label would change",
    )
    yield Failure(
        "one class left",
        ErrorCode.CANNOT_ADAPT,
        lambda: {"json": {"labels": {"red": "green"}}},
        path,
        says="at least two classes",
        detail={"received_classes": 1, "least_classes": 2},
    )
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=edge"):
        yield Failure(
            f"type {kind}",
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            lambda k=kind: raw(b"{}", k),
            path,
            says="send application/json.",
            detail={"allowed": ["application/json"]},
        )


def on_json() -> Iterator[Failure]:
    code = ErrorCode.INVALID_REQUEST
    contents = {
        "empty": b"",
        "text": b"hello",
        "open object": b'{"support": [',
        "two": b"{} {}",
        "array": b"[]",
        "null": b"null",
        "number": b"1",
        "string": b'"x"',
        "bad UTF-8": b'{"model": "\xff"}',
        "long number": b"9" * 5000,
        "deep array": b"[" * 50_000,
        "deep object": b'{"a":' * 15_000,
    }
    for path in ("/adapt", "/predict"):
        for name, content in contents.items():
            yield Failure(f"json: {name}", code, lambda c=content: raw(c), path)
        for mark in (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"):
            yield Failure(f"mark {mark!r}", code, lambda m=mark: raw(m + b"{}"), path, says="byte order mark")
    for value in (None, 1, "x", {}, [None], [1], ["x"], [[]]):
        sent = {"support": value}
        yield Failure(f"support {value!r}", code, lambda s=sent: {"json": s}, says="support")
    for value in (None, 1, "x", {}, [None], [1], [[]], [{"image": "x"}]):
        sent = {"images": value, "classifier": "known"}
        yield Failure(f"images {value!r}", code, lambda s=sent: {"json": s}, "/predict", says="images")
    for text in ("!!!", "a", "data:image/png," + b64(RED), b64(RED) + "\n", "\u00e9", "="):
        sent = {"images": [b64(RED), text], "classifier": "known"}
        yield Failure(
            f"base64 {text[:10]!r}", code, lambda s=sent: {"json": s}, "/predict", says="images.1 is not base64"
        )
        support = {"support": [{"image": text, "label": "a"}]}
        yield Failure(f"base64 {text[:10]!r}", code, lambda s=support: {"json": s}, says="support.0.image")


def on_content_type() -> Iterator[Failure]:
    code = ErrorCode.UNSUPPORTED_MEDIA_TYPE
    for path in ("/adapt", "/predict"):
        for kind in (
            None,
            "text/plain",
            "application/x-www-form-urlencoded",
            "image/png",
            "",
            "application/jsonx",
            "multipart/mixed; boundary=edge",
        ):
            yield Failure(
                f"type {kind}",
                code,
                lambda k=kind: raw(b"{}", k),
                path,
                detail={"allowed": ["multipart/form-data", "application/json"]},
            )
        for kind in ("application/json", "multipart/form-data; boundary=edge"):
            sent = {"content": b"x", "headers": {"Content-Type": kind, "Content-Encoding": "gzip"}}
            yield Failure(f"compressed {kind}", code, lambda s=sent: s, path, says="'gzip'; send the body as it is")
        code_form = ErrorCode.INVALID_REQUEST
        good = adapt_parts() if path == "/adapt" else [file_part(RED), ('"classifier"', b"known")]
        for header in (
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=other",
            'multipart/form-data; boundary="edge',
            "multipart/form-data; boundary=" + "x" * 300,
        ):
            yield Failure(
                f"boundary {header[20:50]!r}", code_form, lambda g=good, h=header: multipart(*g, content_type=h), path
            )
        # A form without parts lacks what the route needs: images, and for one of them classes.
        nothing = ErrorCode.CANNOT_ADAPT if path == "/adapt" else code_form
        for name, content, expected in (
            ("empty", b"", code_form),
            ("no part", b"--edge--\r\n", nothing),
            ("text", b"hello", code_form),
            ("no end", multipart(*good)["content"][:-60], code_form),
            ("no name", part_of(b"Content-Disposition: form-data"), code_form),
            ("no disposition", part_of(b"X-Y: z"), code_form),
            ("bad header", part_of(b"\x00\xff"), code_form),
        ):
            request = raw(content, "multipart/form-data; boundary=edge")
            yield Failure(f"form: {name}", expected, lambda r=request: r, path)


def part_of(header: bytes) -> bytes:
    return b"--edge\r\n" + header + b"\r\n\r\nx\r\n--edge--\r\n"


def adapt_parts() -> list[tuple[str, bytes]]:
    return [file_part(RED), file_part(GREEN), ('"labels"', b"a"), ('"labels"', b"b")]


def on_other_routes() -> Iterator[Failure]:
    code = ErrorCode.INVALID_REQUEST
    for query in (
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=",
        "before=-1",
        "before=x",
        f"before={2**63}",
        "limit=1.5",
        "before=" + "9" * 5000,
    ):
        yield Failure(query[:20], code, dict, f"/classifiers?{query}", "GET", says=query[:5])
    for name in ("absent", "clf_" + "0" * 32, "%20", "%00", "%ED%A0%80", "%F0%9F%90%B1", "x" * 5000):
        for method in ("GET", "DELETE"):
            yield Failure(name[:20], ErrorCode.CLASSIFIER_NOT_FOUND, dict, f"/classifiers/{name}", method)


FAILURES = [
    *on_images(),
    *on_limits(),
    *on_labels(),
    *on_classes(),
    *on_fields(),
    *on_new_labels(),
    *on_json(),
    *on_content_type(),
    *on_other_routes(),
]
