"""Requests that are refused, and how."""

import json
from collections.abc import Iterator
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
    request: dict[str, Any]
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
            yield Failure(f"{name} in {encoding}", code, adapt(bad), detail=detail)
            yield Failure(f"{name} in {encoding}", code, predict(RED, data), "/predict", detail=detail)


def on_limits() -> Iterator[Failure]:
    many = [(flat_png(4, 4), f"label {i}") for i in range(MAX_IMAGES + 1)]
    code, detail = ErrorCode.TOO_MANY_IMAGES, {"allowed_images": MAX_IMAGES}
    for count in (MAX_IMAGES + 1, MAX_IMAGES + 2, 5 * MAX_IMAGES):
        support = (many * 5)[:count]
        images = [data for data, _ in support]
        yield Failure(f"{count} form", code, adapt_form(support), detail=detail)
        yield Failure(f"{count} json", code, adapt_json(support), detail=detail)
        yield Failure(f"{count} form", code, predict_form(*images), "/predict", detail=detail)
        yield Failure(f"{count} json", code, predict_json(*images), "/predict", detail=detail)
    labels = [('"labels"', b"x")] * (MAX_IMAGES + 20)
    yield Failure("fields", code, multipart(*labels), detail=detail)

    code, detail = ErrorCode.BODY_TOO_LARGE, {"allowed_bytes": MAX_BODY}
    big = b"[" + b" " * MAX_BODY + b"]"
    parts = multipart(*[file_part(bytes(MAX_BYTES))] * 6)
    for path in ("/adapt", "/predict"):
        yield Failure("declared json", code, raw(big), path, detail=detail)
        yield Failure("streamed json", code, raw(in_pieces(big)), path, detail=detail)
        yield Failure("declared form", code, parts, path, detail=detail)
        yield Failure("streamed form", code, {**parts, "content": in_pieces(parts["content"])}, path, detail=detail)
        lie = {"content": b"{}", "headers": {"Content-Type": "application/json", "Content-Length": str(MAX_BODY + 1)}}
        yield Failure("declared only", code, lie, path, detail={"received_bytes": MAX_BODY + 1})


def in_pieces(data: bytes) -> list[bytes]:
    """Sent without a Content-Length."""
    return [data[i : i + 10_000] for i in range(0, len(data), 10_000)]


def on_labels() -> Iterator[Failure]:
    code = ErrorCode.INVALID_REQUEST
    files = [file_part(RED), file_part(GREEN)]
    yield Failure("labels missing", code, multipart(*files), says="2 'images' and 0")
    for count in (1, 3):
        labels = [('"labels"', b"x")] * count
        detail = {"received_images": 2, "received_labels": count}
        sent = multipart(*files, *labels)
        yield Failure(f"{count} labels", code, sent, says="one field 'labels' for each image", detail=detail)
    yield Failure("no image", code, multipart(('"labels"', b"x")), says="0 'images'")
    labels_as_files = [('"labels"; filename="x"', b"a"), ('"labels"; filename="x"', b"b")]
    yield Failure("labels as files", code, multipart(*files, *labels_as_files), says="file name")
    bytes_ = [('"labels"', b"a"), ('"labels"', b"caf\xe9")]
    yield Failure("Latin-1 label", code, multipart(*files, *bytes_), says="not UTF-8")
    surrogate = [('"labels"', b"a"), ('"labels"', b"\xed\xa0\x80")]
    yield Failure("surrogate", code, multipart(*files, *surrogate), says="not UTF-8")
    for name, label, says in (
        ("empty", "", "blank"),
        ("blank", " \t\n", "blank"),
        ("no-break space", "\u00a0\u2003", "blank"),
        ("long", "x" * (MAX_LABEL + 1), f"at most {MAX_LABEL}"),
        ("very long", "x" * 70_000, ""),
    ):
        support: Support = [(RED, "red"), (GREEN, label)]
        yield Failure(f"{name} label, form", code, adapt_form(support), says=says)
        yield Failure(f"{name} label, json", code, adapt_json(support), says=says)
    item = {"image": b64(RED)}
    for name, support_json in (
        ("missing", [item]),
        ("number", [{**item, "label": 1}]),
        ("null", [{**item, "label": None}]),
        ("list", [{**item, "label": ["a"]}]),
    ):
        yield Failure(f"{name} label", code, {"json": {"support": support_json}}, says="support.0.label")
    escaped = json.dumps({"support": [{**item, "label": "\ud800"}]}).encode()
    yield Failure("lone surrogate", code, raw(escaped), says="hex escape")


def on_classes() -> Iterator[Failure]:
    code = ErrorCode.CANNOT_ADAPT
    one: Support = [(RED, "red"), (GREEN, "red")]
    for build in (adapt_form, adapt_json):
        few, wrong = {"received_classes": 1, "least_classes": 2}, {"received_classes": 2, "needed_classes": 5}
        yield Failure(f"one class {build.__name__}", code, build(one), says="second one", detail=few)
        tied = build(model="tiny-learned")
        yield Failure(f"wrong ways {build.__name__}", code, tied, says="tied to 5", detail=wrong)
        absent, models = build(model="absent"), ["tiny", "tiny-learned", "tiny-prototype"]
        unknown = ErrorCode.MODEL_NOT_FOUND
        yield Failure(f"unknown model {build.__name__}", unknown, absent, detail={"available": models})
    yield Failure("no support", code, {"json": {"support": []}})
    for build in (predict_form, predict_json):
        name, sent = f"unknown classifier {build.__name__}", build(RED, classifier="absent")
        yield Failure(name, ErrorCode.CLASSIFIER_NOT_FOUND, sent, "/predict", says="'absent'")


def on_fields() -> Iterator[Failure]:
    """Types and values of everything beside the images."""
    code = ErrorCode.INVALID_REQUEST
    horizons = [0, -1, 2e9, "abc", "Auto", True, "", [1], {}, float("nan"), float("inf"), -float("inf")]
    horizons += ["1_0", "\u0661\u0662"]  # Python reads them as numbers
    for horizon in horizons:
        body = json.dumps({**adapt_json()["json"], "horizon": horizon}).encode()
        yield Failure(f"horizon {horizon!r}", code, raw(body), says="horizon")
        if not isinstance(horizon, list | dict):
            yield Failure(f"horizon {horizon!r}, form", code, adapt_form(horizon=str(horizon)), says="horizon")
    body = json.dumps(adapt_json()["json"]).encode()[:-1] + b', "horizon": 1e999}'
    yield Failure("horizon 1e999", code, raw(body), says="horizon")
    for top_k in (0, -1, 101, 10**30, 1.5, "x", None, [], 1e400):
        sent = json.dumps({**predict_json(RED)["json"], "top_k": top_k}).encode()
        yield Failure(f"top_k {top_k!r}", code, raw(sent), "/predict", says="top_k")
        form = predict_form(RED, top_k=str(top_k))
        yield Failure(f"top_k {top_k!r}, form", code, form, "/predict", says="top_k")
    for name in ("", " ", "a b", "clf_x", "x" * 65, ".x", "x\n", "\u00e9", "a/b"):
        yield Failure(f"name {name!r}", code, adapt_json(name=name), says="name")
        yield Failure(f"name {name!r}, form", code, adapt_form(name=name), says="name")
    for key, value in (("name", 1), ("model", 1), ("model", ["tiny"])):
        sent = json.dumps({**adapt_json()["json"], key: value}).encode()
        yield Failure(f"{key} {value!r}", code, raw(sent), says=key)
    for value in (None, 1, ["known"], {}):
        sent = json.dumps({**predict_json(RED)["json"], "classifier": value}).encode()
        yield Failure(f"classifier {value!r}", code, raw(sent), "/predict", says="classifier")
    yield Failure("classifier missing", code, {"json": {"images": [b64(RED)]}}, "/predict", says="classifier")
    yield Failure("classifier missing, form", code, multipart(file_part(RED)), "/predict", says="classifier")
    yield Failure("no images", code, predict_json(), "/predict", says="No image")
    yield Failure("no images, form", code, multipart(('"classifier"', b"known")), "/predict", says="No image")

    for path, build in (("/adapt", adapt_json), ("/predict", lambda **o: predict_json(RED, **o))):
        yield Failure("unknown, json", code, build(colour=1), path, says="colour")
    classifier = ('"classifier"', b"known")
    known = [file_part(RED), classifier]
    unknown = multipart(*known, ('"labels"', b"x"))
    yield Failure("unknown, form", code, unknown, "/predict", says="allowed are images, classifier, top_k")
    says = "allowed are images, labels, model, name, horizon"
    yield Failure("unknown, form", code, adapt_form(colour="1"), says=says)
    yield Failure("nameless part", code, multipart(*known, ('""', b"x")), "/predict", says="Unknown")
    yield Failure("repeated", code, multipart(*known, classifier), "/predict", says="2 times")
    yield Failure("repeated horizon", code, adapt_form(horizon=["1", "2"]), says="2 times")
    as_file = multipart(file_part(RED), ('"classifier"; filename="x"', b"known"))
    yield Failure("option as a file", code, as_file, "/predict", says="file name")
    yield Failure("image as text", code, multipart(('"images"', RED), classifier), "/predict", says="as a file")


def on_new_labels() -> Iterator[Failure]:
    """Of `POST /classifiers/{ref}/labels`."""
    code, path = ErrorCode.INVALID_REQUEST, "/classifiers/known/labels"
    for value in (None, 1, "red", ["red"], [["red", "Red"]], {}):
        yield Failure(f"labels {value!r}", code, {"json": {"labels": value}}, path, says="labels: ")
    for new in (None, 1, ["Red"], {}, "", " \t\n", "\u00a0\u2003"):
        sent = {"labels": {"green": "Green", "red": new, "blue": new}}
        yield Failure(f"new label {new!r}", code, {"json": sent}, path, says="the new label of 'red'")
    for label, says in (
        ("x" * (MAX_LABEL + 1), f"Label 2 has {MAX_LABEL + 1} characters; at most {MAX_LABEL} are allowed"),
        ("x" * 70_000, f"at most {MAX_LABEL}"),
    ):
        sent = {"labels": {"green": "Green", "red": label}}
        yield Failure(f"{len(label)} characters", code, {"json": sent}, path, says=says)
    many = {"labels": dict.fromkeys(map(str, range(5_000)), 1)}
    yield Failure("very many bad labels", code, {"json": many}, path, says="the new label of '0'")
    yield Failure("no labels", code, {"json": {"promote": False}}, path, says="labels")
    yield Failure("promote", code, {"json": {"labels": {"red": "x"}, "promote": "x"}}, path, says="promote")
    yield Failure("another field", code, {"json": {"labels": {"red": "x"}, "name": "x"}}, path, says="name")
    for name, content in (("empty", b""), ("text", b"red=Red"), ("array", b"[]"), ("null", b"null")):
        yield Failure(name, code, raw(content), path)
    yield Failure("surrogate", code, raw(b'{"labels": {"red": "\\ud800"}}'), path, says="hex escape")
    sent = {"json": {"labels": {"red": "Red", "Green": "green", "x" * 1000: "y"}}}
    detail: dict[str, Any] = {"received": ["Green", "x" * 100], "available": ["red", "green"]}
    yield Failure("unknown labels", code, sent, path, says="Its classes are 'red', 'green'.", detail=detail)
    same = {"json": {"labels": {"red": "red", "green": "green"}}}
    yield Failure("nothing changed", code, same, path, says="No label would change")
    one, detail = {"json": {"labels": {"red": "green"}}}, {"received_classes": 1, "least_classes": 2}
    yield Failure("one class left", ErrorCode.CANNOT_ADAPT, one, path, says="at least two classes", detail=detail)
    code, detail = ErrorCode.UNSUPPORTED_MEDIA_TYPE, {"allowed": ["application/json"]}
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=edge"):
        yield Failure(f"type {kind}", code, raw(b"{}", kind), path, says="send application/json.", detail=detail)


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
            yield Failure(f"json: {name}", code, raw(content), path)
        for mark in (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"):
            yield Failure(f"mark {mark!r}", code, raw(mark + b"{}"), path, says="byte order mark")
    for value in (None, 1, "x", {}, [None], [1], ["x"], [[]]):
        yield Failure(f"support {value!r}", code, {"json": {"support": value}}, says="support")
    for value in (None, 1, "x", {}, [None], [1], [[]], [{"image": "x"}]):
        sent = {"json": {"images": value, "classifier": "known"}}
        yield Failure(f"images {value!r}", code, sent, "/predict", says="images")
    for text in ("!!!", "a", "data:image/png," + b64(RED), b64(RED) + "\n", "\u00e9", "="):
        sent = {"json": {"images": [b64(RED), text], "classifier": "known"}}
        yield Failure(f"base64 {text[:10]!r}", code, sent, "/predict", says="images.1 is not base64")
        sent = {"json": {"support": [{"image": text, "label": "a"}]}}
        yield Failure(f"base64 {text[:10]!r}", code, sent, says="support.0.image")


def on_content_type() -> Iterator[Failure]:
    code, detail = ErrorCode.UNSUPPORTED_MEDIA_TYPE, {"allowed": ["multipart/form-data", "application/json"]}
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
            yield Failure(f"type {kind}", code, raw(b"{}", kind), path, detail=detail)
        for kind in ("application/json", "multipart/form-data; boundary=edge"):
            sent = {"content": b"x", "headers": {"Content-Type": kind, "Content-Encoding": "gzip"}}
            yield Failure(f"compressed {kind}", code, sent, path, says="'gzip'; send the body as it is")
        code_form = ErrorCode.INVALID_REQUEST
        good = adapt_parts() if path == "/adapt" else [file_part(RED), ('"classifier"', b"known")]
        for header in (
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=other",
            'multipart/form-data; boundary="edge',
            "multipart/form-data; boundary=" + "x" * 300,
        ):
            sent = multipart(*good, content_type=header)
            yield Failure(f"boundary {header[20:50]!r}", code_form, sent, path)
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
            yield Failure(f"form: {name}", expected, request, path)


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
        yield Failure(query[:20], code, {}, f"/classifiers?{query}", "GET", says=query[:5])
    for name in ("absent", "clf_" + "0" * 32, "%20", "%00", "%ED%A0%80", "%F0%9F%90%B1", "x" * 5000):
        for method in ("GET", "DELETE"):
            yield Failure(name[:20], ErrorCode.CLASSIFIER_NOT_FOUND, {}, f"/classifiers/{name}", method)


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
