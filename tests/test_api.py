"""Every route: what it answers when all is well, and one shape of error when it is not."""

import base64
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from comln_serve import __version__
from comln_serve.api.app import create_app
from comln_serve.api.errors import STATUS
from comln_serve.engine.engine import Engine, load_models
from comln_serve.errors import ErrorCode
from comln_serve.settings import Settings
from comln_serve.storage import open_store
from tests.conftest import colour_support, image_bytes
from tests.test_imaging import png_claiming

MakeEngine = Callable[[Settings], Engine]
Support = list[tuple[bytes, str]]

MAX_IMAGES, MAX_BYTES, MAX_PIXELS, MAX_BODY, MAX_LABEL = 10, 20_000, 10_000, 100_000, 16
RED, GREEN = image_bytes((220, 30, 30)), image_bytes((30, 220, 30))
PAIR: Support = [(RED, "red"), (GREEN, "green")]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def adapt_form(support: Support = PAIR, **options: Any) -> dict[str, Any]:
    return {
        "files": [("images", ("image", data)) for data, _ in support],
        "data": {"labels": [label for _, label in support], **options},
    }


def adapt_json(support: Support = PAIR, **options: Any) -> dict[str, Any]:
    items = [{"image": b64(data), "label": label} for data, label in support]
    return {"json": {"support": items, **options}}


def predict_form(*images: bytes, **options: Any) -> dict[str, Any]:
    files = [("images", ("image", data)) for data in images]
    return {"files": files, "data": {"classifier": "known", **options}}


def predict_json(*images: bytes, **options: Any) -> dict[str, Any]:
    return {"json": {"images": [b64(data) for data in images], "classifier": "known", **options}}


def multipart(*parts: tuple[str, bytes], content_type: str | None = None) -> dict[str, Any]:
    """A body by hand; each part is what follows `name=`, and the content."""
    body = b"".join(
        b"--edge\r\nContent-Disposition: form-data; name=" + name.encode() + b"\r\n\r\n" + content
        + b"\r\n" for name, content in parts
    )  # fmt: skip
    header = content_type or "multipart/form-data; boundary=edge"
    return {"content": body + b"--edge--\r\n", "headers": {"Content-Type": header}}


def raw(
    content: bytes | Iterator[bytes], content_type: str | None = "application/json"
) -> dict[str, Any]:
    headers = {} if content_type is None else {"Content-Type": content_type}
    return {"content": content, "headers": headers}


def file_part(data: bytes) -> tuple[str, bytes]:
    return '"images"; filename="f"', data


@pytest.fixture(scope="module")
def service(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server with tight limits and one classifier, `known`."""
    settings = Settings(
        models_dir=models_dir,
        database_url=f"sqlite:///{tmp_path_factory.mktemp('api') / 'classifiers.db'}",
        provider="cpu",
        default_model="tiny",
        max_images=MAX_IMAGES,
        max_image_bytes=MAX_BYTES,
        max_image_pixels=MAX_PIXELS,
        max_body_bytes=MAX_BODY,
        max_label_length=MAX_LABEL,
    )
    engine = Engine(settings, load_models(settings), open_store(settings.database_url))
    with TestClient(create_app(engine), raise_server_exceptions=False) as client:
        assert client.post("/adapt", **adapt_form(name="known")).status_code == 201
        yield client


def engine_of(client: TestClient) -> Engine:
    engine = client.app.state.engine  # type: ignore[attr-defined]
    assert isinstance(engine, Engine)
    return engine


# --- Success ---------------------------------------------------------------------------------


def test_adapt_and_predict(client: TestClient) -> None:
    before = datetime.now(UTC)
    answer = client.post("/adapt", **adapt_form(colour_support(2), name="colours"))
    assert answer.status_code == 201
    made = answer.json()
    assert made["id"].startswith("clf_")
    assert (made["name"], made["model"]) == ("colours", "tiny")
    assert made["classes"] == [
        {"label": label, "examples": 2} for label in ("red", "green", "blue")
    ]
    assert made["support_accuracy"] == 1.0
    assert 0 < made["support_loss"] < np.log(3)
    assert before <= datetime.fromisoformat(made["created_at"]) <= datetime.now(UTC)
    assert set(made["timings_ms"]) == {"decode", "embed", "solve", "report", "store", "total"}

    answer = client.post("/predict", **predict_form(RED, GREEN, classifier="colours"))
    assert answer.status_code == 200
    body = answer.json()
    assert body["classifier"] == made["id"]
    assert [item["label"] for item in body["predictions"]] == ["red", "green"]
    for item in body["predictions"]:
        assert item["top"][0] == {"label": item["label"], "probability": item["probability"]}
        assert sum(entry["probability"] for entry in item["top"]) == pytest.approx(1.0)
    assert set(body["timings_ms"]) == {"decode", "embed", "classify", "total"}


def test_models(client: TestClient) -> None:
    answer = client.get("/models")
    assert answer.status_code == 200
    models = {item["name"]: item for item in answer.json()["models"]}
    assert {name for name, item in models.items() if item["default"]} == {"tiny"}
    assert {name: (item["start"], item["ways"]) for name, item in models.items()} == {
        "tiny": ("zero", None),
        "tiny-learned": ("learned", 5),
        "tiny-prototype": ("prototype", None),
    }
    assert models["tiny"]["image_size"] == 16
    assert models["tiny"]["embedding_size"] == 8
    assert models["tiny"]["provider"] == "cpu"


def test_classifiers_are_listed_shown_and_deleted(client: TestClient) -> None:
    assert client.get("/classifiers").json() == {"classifiers": [], "next": None}
    made = [client.post("/adapt", **adapt_form(name="same")).json() for _ in range(3)]
    for item in made:
        del item["timings_ms"]
    assert [(item["version"], item["promoted"]) for item in made] == [(n, True) for n in (1, 2, 3)]
    for item in made[:2]:
        item["promoted"] = False
    listed = client.get("/classifiers")
    assert listed.status_code == 200
    brief = [{key: value for key, value in item.items() if key != "report"} for item in made]
    assert listed.json() == {"classifiers": brief[::-1], "next": None}
    assert client.get(f"/classifiers/{made[0]['id']}").json() == made[0]
    assert client.get("/classifiers/same").json() == made[2]

    deleted = client.delete("/classifiers/same")
    assert (deleted.status_code, deleted.content) == (204, b"")
    made[1]["promoted"] = True
    assert client.get("/classifiers/same").json() == made[1], "the older one takes the name back"
    assert client.delete(f"/classifiers/{made[1]['id']}").status_code == 204
    assert client.delete(f"/classifiers/{made[1]['id']}").status_code == 404
    assert client.get("/classifiers").json()["classifiers"] == [{**brief[0], "promoted": True}]


def test_pages(client: TestClient) -> None:
    made = [client.post("/adapt", **adapt_form()).json()["id"] for _ in range(5)]
    seen: list[list[str]] = []
    query: dict[str, int] = {"limit": 2}
    while True:
        page = client.get("/classifiers", params=query).json()
        seen.append([item["id"] for item in page["classifiers"]])
        if page["next"] is None:
            break
        query["before"] = page["next"]
    assert seen == [made[4:2:-1], made[2:0:-1], made[:1]]


def test_health(client: TestClient) -> None:
    assert client.get("/health/live").json() == {"status": "live"}
    ready = client.get("/health/ready")
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "ready",
        "version": __version__,
        "provider": dict.fromkeys(("tiny", "tiny-learned", "tiny-prototype"), "cpu"),
        "classifiers": 0,
    }


def test_documentation_pages(client: TestClient) -> None:
    assert client.get("/docs").status_code == 200
    assert client.get("/openapi.json").json()["info"]["version"] == __version__


@pytest.mark.parametrize("model", ["tiny", "tiny-prototype"])
def test_multipart_and_json_are_the_same(client: TestClient, model: str) -> None:
    support = colour_support(2)
    options = {"model": model, "horizon": 12.5}
    answers = [
        client.post("/adapt", **build(support, **options)) for build in (adapt_form, adapt_json)
    ]
    assert [answer.status_code for answer in answers] == [201, 201]
    made = [answer.json() for answer in answers]
    for key in ("model", "classes", "horizon", "support_loss", "support_accuracy"):
        assert made[0][key] == made[1][key]
    assert made[0]["horizon"] == 12.5
    stored = [engine_of(client).find_classifier(item["id"]) for item in made]
    np.testing.assert_array_equal(stored[0].W, stored[1].W)

    predictions = [
        client.post("/predict", **build(GREEN, RED, classifier=item["id"], top_k=2)).json()
        for build in (predict_form, predict_json)
        for item in made
    ]
    assert all(item["predictions"] == predictions[0]["predictions"] for item in predictions)
    assert [len(item["top"]) for item in predictions[0]["predictions"]] == [2, 2]


@pytest.mark.parametrize(("top_k", "listed"), [(1, 1), (2, 2), (3, 3), (4, 3), (10**30, 3)])
@pytest.mark.parametrize("build", [predict_form, predict_json])
def test_top_k(
    client: TestClient, build: Callable[..., dict[str, Any]], top_k: int, listed: int
) -> None:
    client.post("/adapt", **adapt_form(colour_support(1), name="known"))
    answer = client.post("/predict", **build(RED, top_k=top_k))
    assert answer.status_code == 200
    top = answer.json()["predictions"][0]["top"]
    assert len(top) == listed
    probabilities = [entry["probability"] for entry in top]
    assert probabilities == sorted(probabilities, reverse=True)


@pytest.mark.parametrize("build", [predict_form, predict_json])
def test_order_of_images_is_kept(client: TestClient, build: Callable[..., dict[str, Any]]) -> None:
    client.post("/adapt", **adapt_form(colour_support(), name="known"))
    images = {label: data for data, label in colour_support(1)}
    order = ["blue", "red", "red", "green", "blue", "green", "red"] * 3
    answer = client.post("/predict", **build(*(images[label] for label in order)))
    assert [item["label"] for item in answer.json()["predictions"]] == order


LABELS = [
    "a",
    "a ",
    " a",
    "A",
    "\u00e9",  # e acute in one character
    "e\u0301",  # and in two: another label
    "\N{FAMILY}\u200d\N{CAT FACE}\U0001f3fd",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\u202eright to left\u202c",
    "\u6f22\u5b57",
    "two\nlines",
    "tab\there",
    "quote\"'\\; filename=x",
    "--edge",
    "null",
    "\x00",
    "\ufeffmark",
    "%41+&=",
]


@pytest.mark.parametrize("build", [adapt_form, adapt_json])
def test_labels_come_back_exactly(client: TestClient, build: Callable[..., dict[str, Any]]) -> None:
    support = [(image_bytes(seed=i), label) for i, label in enumerate(LABELS)]
    answer = client.post("/adapt", **build(support))
    assert answer.status_code == 201
    made = answer.json()
    assert [item["label"] for item in made["classes"]] == LABELS
    shown = client.get(f"/classifiers/{made['id']}").json()
    assert [item["label"] for item in shown["classes"]] == LABELS
    answer = client.post("/predict", **predict_form(RED, classifier=made["id"], top_k=99))
    top = answer.json()["predictions"][0]["top"]
    assert sorted(entry["label"] for entry in top) == sorted(LABELS)


@pytest.mark.parametrize("charset", ["utf-16", "latin-1", "nonsense", "hex", "", "\u00e9", "a b;"])
def test_text_is_utf8_whatever_the_content_type_says(client: TestClient, charset: str) -> None:
    """RFC 7578 gives the parameter no meaning, and clients disagree on it."""
    label = "\u6f22 \u00e9"
    request = multipart(
        file_part(RED), file_part(GREEN), ('"labels"', label.encode()), ('"labels"', b"b")
    )
    header = f"multipart/form-data; boundary=edge; charset={charset}".encode()
    answer = client.post("/adapt", content=request["content"], headers={"Content-Type": header})
    assert answer.status_code == 201, answer.text
    assert [item["label"] for item in answer.json()["classes"]] == [label, "b"]


def test_limits_are_inclusive(service: TestClient) -> None:
    support = [(image_bytes(size=(100, 100)), "x" * MAX_LABEL), (RED, "y")]
    support += [(RED, "y")] * (MAX_IMAGES - 2)
    answer = service.post("/adapt", **adapt_form(support))
    assert answer.status_code == 413, "the noise is larger than the limit of bytes"
    support[0] = (flat_png(100, 100), support[0][1])
    for build in (adapt_form, adapt_json):
        answer = service.post("/adapt", **build(support))
        assert answer.status_code == 201, answer.text
        service.delete(f"/classifiers/{answer.json()['id']}")


def flat_png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


# --- Failure ---------------------------------------------------------------------------------


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
        for encoding, adapt, predict in (
            ("form", adapt_form, predict_form),
            ("json", adapt_json, predict_json),
        ):
            yield Failure(f"{name} in {encoding}", code, lambda a=adapt, b=bad: a(b), detail=detail)
            yield Failure(
                f"{name} in {encoding}", code, lambda p=predict, d=data: p(RED, d), "/predict",
                detail=detail,
            )  # fmt: skip


def on_limits() -> Iterator[Failure]:
    many = [(flat_png(4, 4), f"label {i}") for i in range(MAX_IMAGES + 1)]
    code, detail = ErrorCode.TOO_MANY_IMAGES, {"allowed_images": MAX_IMAGES}
    for count in (MAX_IMAGES + 1, MAX_IMAGES + 2, 5 * MAX_IMAGES):
        support = (many * 5)[:count]
        images = [data for data, _ in support]
        yield Failure(f"{count} form", code, lambda s=support: adapt_form(s), detail=detail)
        yield Failure(f"{count} json", code, lambda s=support: adapt_json(s), detail=detail)
        yield Failure(
            f"{count} form", code, lambda i=images: predict_form(*i), "/predict", detail=detail
        )
        yield Failure(
            f"{count} json", code, lambda i=images: predict_json(*i), "/predict", detail=detail
        )
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
            "streamed form",
            code,
            lambda: {**parts, "content": in_pieces(parts["content"])},
            path,
            detail=detail,
        )
        lie = {"Content-Type": "application/json", "Content-Length": str(MAX_BODY + 1)}
        yield Failure(
            "declared only", code, lambda h=lie: {"content": b"{}", "headers": h}, path,
            detail={"received_bytes": MAX_BODY + 1},
        )  # fmt: skip


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
            f"{count} labels", code, lambda la=labels: multipart(*files, *la),
            says="one label for each image",
            detail={"received_images": 2, "received_labels": count},
        )  # fmt: skip
    yield Failure("no image", code, lambda: multipart(('"labels"', b"x")), says="0 'images'")
    labels_as_files = [('"labels"; filename="x"', b"a"), ('"labels"; filename="x"', b"b")]
    yield Failure(
        "labels as files", code, lambda: multipart(*files, *labels_as_files), says="file name"
    )
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
    yield Failure("lone surrogate", code, lambda: raw(escaped), says="lone surrogate")


def on_classes() -> Iterator[Failure]:
    code = ErrorCode.CANNOT_ADAPT
    one: Support = [(RED, "red"), (GREEN, "red")]
    for build in (adapt_form, adapt_json):
        yield Failure(
            f"one class {build.__name__}", code, lambda b=build: b(one), says="second one",
            detail={"received_classes": 1, "least_classes": 2},
        )  # fmt: skip
        yield Failure(
            f"wrong ways {build.__name__}", code, lambda b=build: b(model="tiny-learned"),
            says="tied to 5", detail={"received_classes": 2, "needed_classes": 5},
        )  # fmt: skip
        yield Failure(
            f"unknown model {build.__name__}", ErrorCode.MODEL_NOT_FOUND,
            lambda b=build: b(model="absent"), says="tiny-prototype",
        )  # fmt: skip
    yield Failure("no support", code, lambda: {"json": {"support": []}})
    for build in (predict_form, predict_json):
        yield Failure(
            f"unknown classifier {build.__name__}", ErrorCode.CLASSIFIER_NOT_FOUND,
            lambda b=build: b(RED, classifier="absent"), "/predict", says="'absent'",
        )  # fmt: skip


def on_fields() -> Iterator[Failure]:
    """Types and values of everything beside the images."""
    code = ErrorCode.INVALID_REQUEST
    horizons = [0, -1, 2e9, "abc", "", [1], {}, float("nan"), float("inf"), -float("inf")]
    for horizon in horizons:
        body = json.dumps({**adapt_json()["json"], "horizon": horizon}).encode()
        yield Failure(f"horizon {horizon!r}", code, lambda b=body: raw(b), says="horizon")
        if not isinstance(horizon, list | dict):
            yield Failure(
                f"horizon {horizon!r}, form", code, lambda h=horizon: adapt_form(horizon=str(h)),
                says="horizon",
            )  # fmt: skip
    body = json.dumps(adapt_json()["json"]).encode()[:-1] + b', "horizon": 1e999}'
    yield Failure("horizon 1e999", code, lambda: raw(body), says="horizon")
    for top_k in (0, -1, 1.5, "x", None, [], 1e400):
        sent = json.dumps({**predict_json(RED)["json"], "top_k": top_k}).encode()
        yield Failure(f"top_k {top_k!r}", code, lambda s=sent: raw(s), "/predict", says="top_k")
        yield Failure(
            f"top_k {top_k!r}, form", code, lambda k=top_k: predict_form(RED, top_k=str(k)),
            "/predict", says="top_k",
        )  # fmt: skip
    for name in ("", " ", "a b", "clf_x", "x" * 65, ".x", "x\n", "\u00e9", "a/b"):
        yield Failure(f"name {name!r}", code, lambda n=name: adapt_json(name=n), says="name")
        yield Failure(f"name {name!r}, form", code, lambda n=name: adapt_form(name=n), says="name")
    for key, value in (("name", 1), ("model", 1), ("model", ["tiny"]), ("model", "\ud800")):
        sent = json.dumps({**adapt_json()["json"], key: value}).encode()
        yield Failure(f"{key} {value!r}", code, lambda s=sent: raw(s), says=key)
    for value in (None, 1, ["known"], {}, "\udfff"):
        sent = json.dumps({**predict_json(RED)["json"], "classifier": value}).encode()
        yield Failure(
            f"classifier {value!r}", code, lambda s=sent: raw(s), "/predict", says="classifier"
        )
    yield Failure(
        "classifier missing", code, lambda: {"json": {"images": [b64(RED)]}}, "/predict",
        says="classifier",
    )  # fmt: skip
    yield Failure(
        "classifier missing, form", code, lambda: multipart(file_part(RED)), "/predict",
        says="classifier",
    )  # fmt: skip
    yield Failure("no images", code, predict_json, "/predict", says="No image")
    yield Failure(
        "no images, form", code, lambda: multipart(('"classifier"', b"known")), "/predict",
        says="No image",
    )  # fmt: skip

    for path, build in (("/adapt", adapt_json), ("/predict", lambda **o: predict_json(RED, **o))):
        yield Failure("unknown, json", code, lambda b=build: b(colour=1), path, says="colour")
    classifier = ('"classifier"', b"known")
    known = [file_part(RED), classifier]
    yield Failure(
        "unknown, form", code, lambda: multipart(*known, ('"labels"', b"x")), "/predict",
        says="allowed are images, classifier, top_k",
    )  # fmt: skip
    yield Failure(
        "unknown, form", code, lambda: adapt_form(colour="1"),
        says="allowed are images, labels, model, name, horizon",
    )  # fmt: skip
    yield Failure(
        "nameless part", code, lambda: multipart(*known, ('""', b"x")), "/predict", says="Unknown"
    )
    yield Failure(
        "repeated", code, lambda: multipart(*known, classifier), "/predict", says="2 times"
    )
    yield Failure("repeated horizon", code, lambda: adapt_form(horizon=["1", "2"]), says="2 times")
    yield Failure(
        "option as a file", code,
        lambda: multipart(file_part(RED), ('"classifier"; filename="x"', b"known")), "/predict",
        says="file name",
    )  # fmt: skip
    yield Failure(
        "image as text", code, lambda: multipart(('"images"', RED), classifier), "/predict",
        says="as a file",
    )  # fmt: skip


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
        "byte order mark": b"\xff\xfe\x00",
        "deep array": b"[" * 50_000,
        "deep object": b'{"a":' * 15_000,
    }
    for path in ("/adapt", "/predict"):
        for name, content in contents.items():
            yield Failure(f"json: {name}", code, lambda c=content: raw(c), path)
    for value in (None, 1, "x", {}, [None], [1], ["x"], [[]]):
        sent = {"support": value}
        yield Failure(f"support {value!r}", code, lambda s=sent: {"json": s}, says="support")
    for value in (None, 1, "x", {}, [None], [1], [[]], [{"image": "x"}]):
        sent = {"images": value, "classifier": "known"}
        yield Failure(
            f"images {value!r}", code, lambda s=sent: {"json": s}, "/predict", says="images"
        )
    for text in ("!!!", "a", "data:image/png;base64," + b64(RED), b64(RED) + "\n", "\u00e9", "="):
        sent = {"images": [b64(RED), text], "classifier": "known"}
        yield Failure(
            f"base64 {text[:10]!r}", code, lambda s=sent: {"json": s}, "/predict",
            says="images.1 is not base64",
        )  # fmt: skip
        support = {"support": [{"image": text, "label": "a"}]}
        yield Failure(
            f"base64 {text[:10]!r}", code, lambda s=support: {"json": s}, says="support.0.image"
        )


def on_content_type() -> Iterator[Failure]:
    code = ErrorCode.UNSUPPORTED_MEDIA_TYPE
    for path in ("/adapt", "/predict"):
        for kind in (None, "text/plain", "application/x-www-form-urlencoded", "image/png", "",
                     "application/jsonx", "multipart/mixed; boundary=edge"):  # fmt: skip
            yield Failure(
                f"type {kind}", code, lambda k=kind: raw(b"{}", k), path,
                detail={"allowed": ["multipart/form-data", "application/json"]},
            )  # fmt: skip
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
                f"boundary {header[20:50]!r}", code_form,
                lambda g=good, h=header: multipart(*g, content_type=h), path,
            )  # fmt: skip
        # A form that is only empty lacks what the route needs: images, and for one of them classes.
        nothing = ErrorCode.CANNOT_ADAPT if path == "/adapt" else code_form
        for name, content, expected in (
            ("empty", b"", nothing),
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
    for query in ("limit=0", "limit=1001", "limit=x", "limit=", "before=-1", "before=x",
                  f"before={2**63}", "limit=1.5", "before=" + "9" * 5000):  # fmt: skip
        yield Failure(query[:20], code, dict, f"/classifiers?{query}", "GET", says=query[:5])
    for name in (
        "absent",
        "clf_" + "0" * 32,
        "%20",
        "%00",
        "%ED%A0%80",
        "%F0%9F%90%B1",
        "x" * 5000,
    ):
        for method in ("GET", "DELETE"):
            yield Failure(
                name[:20], ErrorCode.CLASSIFIER_NOT_FOUND, dict, f"/classifiers/{name}", method
            )


FAILURES = [
    *on_images(), *on_limits(), *on_labels(), *on_classes(), *on_fields(), *on_json(),
    *on_content_type(), *on_other_routes(),
]  # fmt: skip


def check_error(answer: Any, code: ErrorCode) -> dict[str, Any]:
    """The one shape; returns what is inside."""
    assert answer.status_code == STATUS[code], answer.text
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"code", "message", "detail", "request_id"}
    assert error["request_id"] == answer.headers["x-request-id"]
    assert error["code"] == code.value, error
    assert isinstance(error["detail"], dict)
    assert len(error["message"]) > 10
    assert ("retry-after" in answer.headers) == (answer.status_code in (429, 503))
    return error


def check_still_serving(client: TestClient) -> None:
    assert client.get("/health/ready").status_code == 200
    assert client.post("/predict", **predict_form(GREEN)).json()["predictions"][0]["label"] in (
        "red",
        "green",
    )
    engine = engine_of(client)
    assert (engine.images.pending, client.app.state.requests.pending) == (0, 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: f"{f.method} {f.path[:40]} {f.name}")
def test_failure(service: TestClient, failure: Failure) -> None:
    """One shape, the documented status, nothing stored, and the server goes on."""
    stored = service.get("/classifiers").json()
    answer = service.request(failure.method, failure.path, **failure.request())
    error = check_error(answer, failure.code)
    assert failure.says in error["message"]
    assert failure.detail.items() <= error["detail"].items()
    assert len(answer.content) < 20_000, "what was received is echoed in part only"

    route = failure.path.partition("?")[0]
    if route.startswith("/classifiers/"):
        route = "/classifiers/{ref}"
    document = service.get("/openapi.json").json()
    responses = document["paths"][route][failure.method.lower()]["responses"]
    assert failure.code.value in responses[str(answer.status_code)]["description"]

    assert service.get("/classifiers").json() == stored
    check_still_serving(service)


def test_json_of_every_depth(service: TestClient) -> None:
    """Between what the JSON reader refuses and what is shallow lies what only later code meets."""
    for depth in (*range(10, 800, 40), *range(800, 1100, 5)):
        nest = b"[" * depth + b"]" * depth
        for path, body in (
            ("/adapt", b'{"support": ' + nest + b"}"),
            ("/adapt", nest),
            ("/predict", b'{"classifier": "known", "images": [], "x": ' + nest + b"}"),
        ):
            check_error(service.post(path, **raw(body)), ErrorCode.INVALID_REQUEST)
    check_still_serving(service)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/adapt", b'{"support": [' + b"1," * 40_000 + b"1]}"),
        ("/predict", b'{"classifier": "known", "images": [' + b"1," * 40_000 + b"1]}"),
        ("/adapt", json.dumps(dict.fromkeys(map(str, range(6_000)))).encode()),
        ("/adapt", json.dumps({"support": [dict.fromkeys(map(str, range(6_000)))]}).encode()),
    ],
    ids=["support", "images", "fields", "fields of an image"],
)
def test_many_mistakes_give_one_report(service: TestClient, path: str, content: bytes) -> None:
    """Pydantic's report of a mistake takes hundreds of times the two bytes that make one."""
    error = check_error(service.post(path, **raw(content)), ErrorCode.INVALID_REQUEST)
    assert len(error["detail"]["problems"]) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/nothing"), ("GET", "/classifiers/a/b"), ("DELETE", "/%2e%2e/x"),
     ("GET", "/caf\u00e9")],
)  # fmt: skip
def test_no_such_route(service: TestClient, method: str, path: str) -> None:
    answer = service.request(method, path, follow_redirects=False)
    error = check_error(answer, ErrorCode.ROUTE_NOT_FOUND)
    assert "/docs" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/adapt", {"POST"}),
        ("PUT", "/predict", {"POST"}),
        ("DELETE", "/classifiers", {"GET"}),
        ("POST", "/models", {"GET"}),
        ("POST", "/health/live", {"GET"}),
        ("PATCH", "/classifiers/known", {"GET", "DELETE"}),
        ("OPTIONS", "/adapt", {"POST"}),
        ("BREW", "/models", {"GET"}),
    ],
)
def test_method_not_allowed(service: TestClient, method: str, path: str, allowed: set[str]) -> None:
    answer = service.request(method, path)
    check_error(answer, ErrorCode.METHOD_NOT_ALLOWED)
    assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == allowed


@pytest.mark.parametrize("counted", ["requests", "images"])
def test_overload(settings: Settings, make_engine: MakeEngine, counted: str) -> None:
    limits = {"max_pending_requests": 3, "max_images": 4, "max_pending_images": 4}
    engine = make_engine(settings.model_copy(update=limits))
    with TestClient(create_app(engine), raise_server_exceptions=False) as client:
        client.post("/adapt", **adapt_form(name="known"))
        busy = (
            client.app.state.requests.admit(3)  # type: ignore[attr-defined]
            if counted == "requests"
            else engine.images.admit(3)
        )
        with busy:
            for path, request in (
                ("/adapt", adapt_form()),
                ("/adapt", adapt_json()),
                ("/predict", predict_form(RED, GREEN)),
            ):
                answer = client.post(path, **request)
                error = check_error(answer, ErrorCode.OVERLOADED)
                assert answer.headers["retry-after"] == "1"
                assert error["detail"]["limit"] == (3 if counted == "requests" else 4)
            assert client.get("/health/ready").status_code == 200
            assert client.get("/classifiers").json()["classifiers"][0]["name"] == "known"
        assert client.post("/predict", **predict_form(RED, GREEN)).status_code == 200
        assert len(client.get("/classifiers").json()["classifiers"]) == 1


def test_store_that_is_gone(client: TestClient) -> None:
    client.post("/adapt", **adapt_form(name="known"))
    engine_of(client).store.close()
    for method, path, request in (
        ("POST", "/adapt", adapt_form()),
        ("POST", "/predict", predict_form(RED)),
        ("GET", "/classifiers", {}),
        ("GET", "/classifiers/known", {}),
        ("DELETE", "/classifiers/known", {}),
        ("GET", "/health/ready", {}),
    ):
        check_error(client.request(method, path, **request), ErrorCode.STORAGE_UNAVAILABLE)
    assert client.get("/health/live").status_code == 200
    assert client.get("/models").status_code == 200


def test_not_ready_until_warm(settings: Settings, make_engine: MakeEngine) -> None:
    engine = make_engine(settings)
    client = TestClient(create_app(engine))  # not entered: the application has not started
    check_error(client.get("/health/ready"), ErrorCode.NOT_READY)
    assert client.get("/health/live").status_code == 200
    engine.warm()
    assert client.get("/health/ready").status_code == 200


def test_a_model_that_changed(
    client: TestClient, settings: Settings, make_engine: MakeEngine, tmp_path: Path
) -> None:
    client.post("/adapt", **adapt_form(name="known"))
    models = tmp_path / "models"
    models.mkdir()
    (models / "other").symlink_to(settings.models_dir / "tiny", target_is_directory=True)
    update = {"models_dir": models, "default_model": "other"}
    later = TestClient(create_app(make_engine(settings.model_copy(update=update))))
    error = check_error(later.post("/predict", **predict_form(RED)), ErrorCode.MODEL_CHANGED)
    assert error["detail"]["model"] == "tiny"


def test_unexpected_failure_tells_nothing_of_the_inside(client: TestClient) -> None:
    """Thread pools that are gone stand for any bug."""
    engine_of(client)._embedder.close()
    error = check_error(client.post("/adapt", **adapt_form()), ErrorCode.INTERNAL)
    assert error["detail"] == {}
    assert "shutdown" not in error["message"]
    assert client.get("/classifiers").json()["classifiers"] == []


# --- The document ----------------------------------------------------------------------------


def test_document_has_one_error_shape_and_no_loose_end(service: TestClient) -> None:
    document = service.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    references = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                references.add(node["$ref"])
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(document)
    assert references == {f"#/components/schemas/{name}" for name in references_of(references)}
    assert references_of(references) <= set(schemas)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    schema = response["content"]["application/json"]["schema"]
                    shape = "ProtocolError" if path.startswith("/v2") else "ErrorResponse"
                    assert schema == {"$ref": f"#/components/schemas/{shape}"}, (path, status)
    assert set(schemas["ErrorCode"]["enum"]) == {code.value for code in ErrorCode}


def references_of(references: set[str]) -> set[str]:
    return {reference.rpartition("/")[2] for reference in references}


@pytest.mark.parametrize("path", ["/adapt", "/predict"])
def test_document_describes_both_encodings(service: TestClient, path: str) -> None:
    body = service.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]
    assert body["required"]
    form = body["content"]["multipart/form-data"]["schema"]
    options = {
        "/adapt": {"model", "name", "horizon", "promote", "metadata", "expires_in_seconds"},
        "/predict": {"classifier", "top_k", "unknown"},
    }[path]
    images = {"images", "labels"} if path == "/adapt" else {"images"}
    assert set(form["properties"]) == options | images
    assert set(form["required"]) == images | ({"classifier"} & options)
    assert "application/json" in body["content"]


@pytest.mark.parametrize(
    "body",
    [b'{"support": [' + b"0," * 400_000 + b"0]}", b'{"images": [' + b"[]," * 300_000 + b"[]]}",
     b"{" + b",".join(b'"k%d": 1' % i for i in range(100_000)) + b"}"],
    ids=["mistakes", "nested", "fields"],
)  # fmt: skip
def test_a_flood_of_mistakes_is_one_short_answer(client: TestClient, body: bytes) -> None:
    for route in ("/adapt", "/predict"):
        answer = client.post(route, content=body, headers={"Content-Type": "application/json"})
        check_error(answer, ErrorCode.INVALID_REQUEST)
        assert len(answer.content) < 10_000


def test_json_has_a_limit_of_its_own(settings: Settings, make_engine: MakeEngine) -> None:
    engine = make_engine(settings.model_copy(update={"max_json_bytes": 1000}))
    with TestClient(create_app(engine)) as client:
        body = b'{"support": [' + b" " * 1000 + b"]}"
        answer = client.post("/adapt", content=body, headers={"Content-Type": "application/json"})
    check_error(answer, ErrorCode.BODY_TOO_LARGE)
