"""A classifier goes from one server to another by its support set in a file, and is the same there."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from fastapi.testclient import TestClient
from pydantic import ValidationError

from comln_serve.errors import ErrorCode
from comln_serve.export.support_file import SupportFileError, read_support, write_support
from tests.support.bundles import edit_manifest
from tests.support.classifiers import HASHES, classifier, support
from tests.support.engines import Serve
from tests.support.image_files import colour_support, image_bytes
from tests.support.messages import GREEN, RED, adapt_form, adapt_json, check_error, engine_of, predict_form, raw

BYTES = "application/octet-stream"
Arrays = dict[str, Any]


@pytest.fixture
def source(serve: Serve) -> TestClient:
    """Has `letters`, with a report and examples that were added and removed."""
    client = serve()
    form = adapt_form(colour_support(4), name="letters", metadata=json.dumps({"owner": "Zoë"}))
    assert client.post("/adapt", **form).status_code == 201
    client.post("/classifiers/letters/examples", **adapt_form([(image_bytes((20, 20, 200), seed=7), "blue")]))
    client.delete("/classifiers/letters/examples/2")
    return client


@pytest.fixture
def target(serve: Serve, tmp_path: Path) -> TestClient:
    return serve(database_url=f"sqlite:///{tmp_path / 'target.db'}")


def file_of(client: TestClient, reference: str) -> bytes:
    answer = client.get(f"/classifiers/{reference}/support")
    assert answer.status_code == 200, answer.text
    return answer.content


def send(client: TestClient, content: bytes, **query: Any) -> Any:
    return client.post("/classifiers", params=query, **raw(content, BYTES))


def parts_of(content: bytes) -> tuple[Arrays, dict[str, str], dict[str, Any]]:
    """Arrays, texts of the header, and what the one of them that is JSON says."""
    (length,) = struct.unpack("<Q", content[:8])
    texts = json.loads(content[8 : 8 + length])["__metadata__"]
    return dict(safetensors.numpy.load(content)), texts, json.loads(texts["support"])


@pytest.mark.parametrize("horizon", [None, 7.0, "auto"])
def test_the_classifier_is_the_same(
    source: TestClient, serve: Serve, database_url: str, horizon: float | str | None
) -> None:
    """To the last bit, its report included; and so are those that are made of it."""
    target = serve(database_url=database_url)
    if horizon is not None:
        source.post("/classifiers/letters/adapt", json={"horizon": horizon})
    answer = source.get("/classifiers/letters/support")
    assert answer.headers["content-disposition"] == 'attachment; filename="letters.support"'
    answer = send(target, answer.content)
    assert answer.status_code == 201
    assert answer.json()["metadata"] == {"owner": "Zoë"}
    there, here = (engine_of(client).classifiers.find("letters") for client in (source, target))
    assert (here.version, here.promoted) == (1, True)
    assert here.W.tobytes() == there.W.tobytes()
    for fact in ("labels", "examples", "horizon", "horizon_rule", "embedder_sha256", "head_sha256", "support_loss"):
        assert getattr(here, fact) == getattr(there, fact)
    reports = [client.get("/classifiers/letters").json()["report"] for client in (source, target)]
    for report in reports:  # of which example 2 is gone at the source
        report["held_out"].pop("suspects")
    assert reports[0] == reports[1]
    for client in (source, target):
        client.post("/classifiers/letters/examples", **adapt_form([(GREEN, "green"), (RED, "red")]))
    again = [engine_of(client).classifiers.find("letters").W.tobytes() for client in (source, target)]
    assert again[0] == again[1] != there.W.tobytes()
    numbers = [item["number"] for item in target.get("/classifiers/letters/examples").json()["examples"]]
    assert numbers == list(range(1, len(numbers) + 1))


def test_hashes_and_what_has_none_come_back() -> None:
    content = write_support(classifier("clf_a"), support())
    found, _ = read_support(content, most_header=len(content), most_classes=9, most_examples=9)
    assert found.hashes == HASHES


def test_names_and_versions(source: TestClient, target: TestClient) -> None:
    content = file_of(source, "letters")
    made = [send(target, content, **query).json() for query in ({}, {"name": "others"}, {"promote": False}, {})]
    told = [(one["name"], one["version"], one["promoted"]) for one in made]
    assert told == [("letters", 1, True), ("others", 1, True), ("letters", 2, False), ("letters", 3, True)]
    plain = source.post("/adapt", **adapt_form()).json()
    assert send(target, file_of(source, plain["id"])).json()["name"] is None


def test_a_repeated_request_makes_one(source: TestClient, target: TestClient) -> None:
    content = file_of(source, "letters")
    headers = {"Idempotency-Key": "once", "Content-Type": BYTES}
    first, second = (target.post("/classifiers", content=content, headers=headers) for _ in range(2))
    assert (first.json()["id"], second.headers["idempotency-replayed"]) == (second.json()["id"], "true")
    other = target.post("/classifiers?name=other", content=content, headers=headers)
    check_error(other, ErrorCode.IDEMPOTENCY_MISMATCH)
    assert len(target.get("/classifiers").json()["classifiers"]) == 1


def test_a_model_that_is_not_served(serve: Serve, source: TestClient, models_dir: Path, tmp_path: Path) -> None:
    """The bundle may have another name here. What it was exported from needs it no more."""
    models = tmp_path / "models"
    shutil.copytree(models_dir / "tiny-prototype", models / "tiny-prototype")
    edit_manifest(models / "tiny-prototype", lambda content: content["preprocessing"].update(interpolation="lanczos"))
    target = serve(models_dir=models, default_model=None, database_url=f"sqlite:///{tmp_path / 'target.db'}")
    content = file_of(source, "letters")
    error = check_error(send(target, content), ErrorCode.MODEL_CHANGED)
    assert (error["detail"]["model"], "served are tiny-prototype" in error["message"]) == ("tiny", True)
    shutil.copytree(models_dir / "tiny", models / "another")
    assert target.post("/models/reload").status_code == 200
    assert send(target, content).json()["model"] == "another"
    target.post("/classifiers/letters/adapt", json={"horizon": 2})
    (models / "another").rename(tmp_path / "away")
    assert target.post("/models/reload").status_code == 200
    assert len(file_of(target, "letters")) > 0


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("support_version", "2", "its version is '2'; this release reads version 1"),
        ("embeddings", np.full((2, 2), np.nan, np.float32), "embeddings that are not numbers up to 1e+15"),
        ("embeddings", np.full((2, 2), -1e16, np.float32), "embeddings that are not numbers up to 1e+15"),
        ("embeddings", np.full((2, 2), 1e16, np.float32), "embeddings that are not numbers up to 1e+15"),
        ("embeddings", np.ones((2, 2)), "no array 'embeddings' of float32 with 2 dimensions"),
        ("embeddings", np.ones(2, np.float32), "no array 'embeddings' of float32 with 2 dimensions"),
        ("embeddings", np.ones((3, 2), np.float32), "not of equally many examples"),
        ("hashes", np.ones(3, np.uint64), "not of equally many examples"),
        ("hashed", np.ones(3, np.bool_), "not of equally many examples"),
        ("embeddings", np.ones((2, 3), np.float32), "Each embedding has 3 numbers"),
        ("classes", np.array([0, 2]), "other classes than its 2 labels"),
        ("classes", np.array([0, -1]), "other classes than its 2 labels"),
        ("hashes", np.ones(2, np.int64), "no array 'hashes' of uint64"),
        ("labels", ["red", ["green"]], "its header says of 'labels.1'"),
        ("labels", ["red", " "], "labels.1"),
        ("labels", ["red", "red"], "two of its labels are the same"),
        ("labels", ["red", "x" * 17], "Label 2 has 17 characters"),
        ("name", "no name", "the file's header: name: must be 1 to 64 letters"),
        ("name", "clf_1", "must not start with"),
        ("horizon", -1.0, "horizon"),
        ("horizon", "soon", "horizon"),
        ("metadata", {str(n): "" for n in range(33)}, "metadata"),
        ("metadata", {"a": 1}, "the file's header: metadata.a"),
        ("model", None, "its header says of 'model'"),
    ],
)
def test_files_that_are_refused(service: TestClient, name: str, value: Any, said: str) -> None:
    before = service.get("/classifiers").json()
    arrays, texts, about = parts_of(file_of(service, "known"))
    (arrays if name in arrays else texts if name in texts else about)[name] = value
    content = safetensors.numpy.save(arrays, metadata={**texts, "support": json.dumps(about)})
    error = check_error(send(service, content), ErrorCode.INVALID_REQUEST)
    assert said in error["message"]
    assert service.get("/classifiers").json() == before


def header(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def described(array: str, kind: str, shape: list[int], offsets: list[int], /, **about: Any) -> bytes:
    """A file with one array, of which its four bytes are."""
    said = {"labels": [], "model": "", "embedder_sha256": "", "horizon": 1, "name": None, "metadata": {}, **about}
    texts = {"support_version": "1", "support": json.dumps(said)}
    entry = {"dtype": kind, "shape": shape, "data_offsets": offsets}
    return header(json.dumps({"__metadata__": texts, array: entry}).encode()) + bytes(4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "The request body is empty; send an exported support set."),
        (b"abc", "no safetensors file"),
        (b"\xff" * 100, "no safetensors file"),
        (header(b"{}"), "not that of a support set"),
        (header(b"[]"), "not that of a support set"),
        (header(b'{"__metadata__": {"support_version": "1"}}'), "not that of a support set"),
        (header(b'{"__metadata__": {"support_version": "1", "support": "{"}}'), "its header says of ''"),
        (header(b"[" * 90_000), "not that of a support set"),
        (safetensors.numpy.save({"W": np.ones((2, 2), np.float32)}), "not that of a support set"),
        (described("x", "F32", [1] * 65, [0, 4]), "it is no safetensors file"),
        (described("x", "F32", [2**63, 0], [0, 0])[:-4], "it is no safetensors file"),
        (described("x", "F32", [2**64 - 1, 0], [0, 0])[:-4], "it is no safetensors file"),
        (described("x", "BF16", [2], [0, 4]), "it is no safetensors file"),
    ],
)
def test_what_is_no_such_file(service: TestClient, content: bytes, said: str) -> None:
    assert said in check_error(send(service, content), ErrorCode.INVALID_REQUEST)["message"]


@pytest.mark.parametrize(
    "content",
    [
        described("x" * 50_000, "F32", [1], [4, 8]),
        described("x", "F32", [1], [0, 4], labels=[1] * 20_000),
        described("x", "F32", [1], [0, 4], metadata={str(n): 1 for n in range(5_000)}),
        described("x", "F32", [1], [0, 4], model="x" * 40_000, name="x" * 40_000),
    ],
)
def test_answers_to_bad_files_are_short(service: TestClient, content: bytes) -> None:
    answer = send(service, content)
    check_error(answer, ErrorCode.INVALID_REQUEST)
    assert len(answer.content) < 2_000


@pytest.mark.parametrize(
    "about", [{"labels": [1] * 20_000}, {"labels": [1], "metadata": {str(n): 1 for n in range(99)}}]
)
def test_many_mistakes_make_few_reports(about: dict[str, Any]) -> None:
    """Those of all of them would take seconds."""
    content = described("x", "F32", [1], [0, 4], **about)
    with pytest.raises(SupportFileError) as raised:
        read_support(content, most_header=len(content), most_classes=9, most_examples=9)
    assert isinstance(raised.value.__cause__, ValidationError)
    assert raised.value.__cause__.error_count() == 1


def test_a_long_header_is_not_parsed() -> None:
    with pytest.raises(SupportFileError, match="it has 100 bytes in its header; at most 99 are allowed"):
        read_support(header(b" " * 100), most_header=99, most_classes=9, most_examples=9)


def test_no_json_and_no_form(service: TestClient) -> None:
    for sent in (adapt_form(), adapt_json(), raw(b"x", None)):
        error = check_error(service.post("/classifiers", **sent), ErrorCode.UNSUPPORTED_MEDIA_TYPE)
        assert error["detail"]["allowed"] == [BYTES]


@pytest.mark.parametrize(
    "extreme",
    [np.zeros_like, lambda like: np.full_like(like, 1e15), lambda like: np.full_like(like, 1e-45), np.negative],
)
@pytest.mark.parametrize("model", ["tiny", "tiny-prototype"])
def test_embeddings_that_no_network_makes(
    target: TestClient, model: str, extreme: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Are adapted to, and predict, or are refused."""
    made = target.post("/adapt", **adapt_form(model=model)).json()
    arrays, texts, _ = parts_of(file_of(target, made["id"]))
    arrays["embeddings"] = extreme(arrays["embeddings"])
    answer = send(target, safetensors.numpy.save(arrays, metadata=texts))
    if answer.status_code != 201:
        check_error(answer, ErrorCode.CANNOT_ADAPT)
        return
    predicted = target.post("/predict", **predict_form(RED, classifier=answer.json()["id"], unknown="true")).json()
    assert 0.0 <= predicted["predictions"][0]["probability"] <= 1.0


def test_too_few_classes_and_too_many_examples(serve: Serve, source: TestClient, tmp_path: Path) -> None:
    content = file_of(source, "letters")
    arrays, texts, about = parts_of(content)
    arrays["classes"][:] = 0
    alone = safetensors.numpy.save(arrays, metadata=texts)
    check_error(send(source, alone), ErrorCode.CANNOT_ADAPT)
    small = serve(max_examples=len(arrays["classes"]) - 1, database_url=f"sqlite:///{tmp_path / 'small.db'}")
    assert "--max-examples" in check_error(send(small, content), ErrorCode.INVALID_REQUEST)["message"]
    few = serve(max_classes=len(about["labels"]) - 1, database_url=f"sqlite:///{tmp_path / 'few.db'}")
    assert "--max-classes" in check_error(send(few, content), ErrorCode.INVALID_REQUEST)["message"]
    full = serve(max_classifiers=1, database_url=f"sqlite:///{tmp_path / 'full.db'}")
    assert send(full, content).status_code == 201
    check_error(send(full, content), ErrorCode.TOO_MANY_CLASSIFIERS)
