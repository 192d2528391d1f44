"""The Open Inference Protocol: Triton's client against the real server, and malformed requests."""

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import hypothesis
import numpy as np
import pytest
import tritonclient.http as triton
from fastapi.testclient import TestClient
from hypothesis import strategies as st

from tests.support import fuzzing, http
from tests.support.image_files import colour_support, image_bytes
from tests.support.live import LiveServer, live_server
from tests.support.messages import adapt_form
from tests.support.paths import REPOSITORY

LABELS = ["red", "green", "blue"]
QUERIES = [image_bytes((200, 20, 20), (31, 45), seed=7), image_bytes((20, 20, 200), (50, 20), "JPEG")]


@pytest.fixture(scope="module")
def server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("open-inference")
    limits = ("--max-images", "20", "--max-image-bytes", "50000")
    with live_server(models_dir, folder, "--default-model", "tiny", *limits) as server:
        adapted = http.post(f"{server.url}/adapt", **adapt_form(colour_support(), name="colours"))
        adapted.raise_for_status()
        yield server
        assert http.get(f"{server.url}/health/ready").status_code == 200
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def triton_client(server: LiveServer) -> Iterator[Any]:
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as triton_client:
        yield triton_client


@pytest.fixture
def client_in_process(client: TestClient) -> TestClient:
    """With the classifier `colours`."""
    answer = client.post("/adapt", **adapt_form(colour_support(), name="colours"))
    assert answer.status_code == 201
    return client


@pytest.fixture(scope="module")
def expected(server: LiveServer) -> Any:
    """What /predict says of the queries, (2, 3)."""
    answer = http.post(
        f"{server.url}/predict", data={"classifier": "colours"}, files=[("images", data) for data in QUERIES]
    ).json()
    by_label = [{t["label"]: t["probability"] for t in p["top"]} for p in answer["predictions"]]
    return np.array([[found[label] for label in LABELS] for found in by_label])


def images_input(*files: bytes, binary: bool = True) -> Any:
    made = triton.InferInput("IMAGE", [len(files)], "BYTES")
    array = np.array([data if binary else base64.b64encode(data) for data in files], dtype=object)
    return made.set_data_from_numpy(array, binary_data=binary)


def test_triton_s_client_reads_health_and_metadata(triton_client: Any) -> None:
    assert triton_client.is_server_live()
    assert triton_client.is_server_ready()
    assert triton_client.is_model_ready("colours")
    assert not triton_client.is_model_ready("nobody")
    assert triton_client.get_server_metadata()["name"] == "comln-serve"
    metadata = triton_client.get_model_metadata("colours")
    assert metadata["name"] == "colours"
    assert metadata["inputs"] == [{"name": "IMAGE", "datatype": "BYTES", "shape": [-1]}]
    assert metadata["outputs"] == [
        {"name": "PROBS", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "LABEL", "datatype": "BYTES", "shape": [-1]},
    ]


@pytest.mark.parametrize("out_binary", [True, False])
@pytest.mark.parametrize("in_binary", [True, False])
def test_images_and_probabilities_go_as_json_and_as_binary(
    triton_client: Any, expected: Any, in_binary: bool, out_binary: bool
) -> None:
    outputs = [triton.InferRequestedOutput(n, binary_data=out_binary) for n in ("LABEL", "PROBS")]
    result = triton_client.infer(
        "colours", [images_input(*QUERIES, binary=in_binary)], outputs=outputs, request_id="mine ☃"
    )
    assert result.as_numpy("PROBS").dtype == np.float32
    assert result.as_numpy("PROBS") == pytest.approx(expected, abs=1e-6)
    labels = [x if isinstance(x, str) else x.decode() for x in result.as_numpy("LABEL")]
    assert labels == [LABELS[i] for i in expected.argmax(axis=1)]
    response = result.get_response()
    assert response["id"] == "mine ☃"
    assert response["model_name"] == "colours"
    assert [output["name"] for output in response["outputs"]] == ["LABEL", "PROBS"]


def test_all_outputs_unless_some_are_chosen(triton_client: Any, expected: Any) -> None:
    everything = triton_client.infer("colours", [images_input(*QUERIES)])
    assert everything.as_numpy("PROBS") == pytest.approx(expected, abs=1e-6)
    assert everything.as_numpy("LABEL").shape == (2,)
    outputs = [triton.InferRequestedOutput("PROBS")]
    chosen = triton_client.infer("colours", [images_input(*QUERIES)], outputs=outputs)
    assert chosen.as_numpy("PROBS") is not None
    assert chosen.as_numpy("LABEL") is None


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_classes_are_ranked(triton_client: Any, expected: Any, count: int, binary: bool) -> None:
    output = triton.InferRequestedOutput("PROBS", binary_data=binary, class_count=count)
    result = triton_client.infer("colours", [images_input(*QUERIES)], outputs=[output]).as_numpy("PROBS")
    assert result.shape == (2, min(count, 3))
    for row, probabilities in zip(result, expected, strict=True):
        for text, index in zip(row, (-probabilities).argsort(), strict=False):
            value, found, label = (text if isinstance(text, str) else text.decode()).split(":")
            assert (int(found), label) == (index, LABELS[index])
            assert float(value) == pytest.approx(probabilities[index], abs=1e-6)


def test_the_document_works_as_printed(server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (REPOSITORY / "docs" / "open-inference.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```py\n(.*?)```", text, flags=re.DOTALL)
    address = server.url.removeprefix("http://")
    block = block.replace("localhost:8000", address).replace('"letters"', '"colours"')
    for name, data in zip(("1.png", "2.png"), QUERIES, strict=True):
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(compile(block, "open-inference.md", "exec"), scope)
    assert scope["result"].as_numpy("LABEL").tolist() == [b"red", b"blue"]
    scope["client"].close()


def test_the_document_s_command_works_as_printed(server: LiveServer, tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "open-inference.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    block = block.replace("http://localhost:8000", server.url).replace("/letters/", "/colours/")
    (tmp_path / "1.png").write_bytes(QUERIES[0])
    found = subprocess.run(["bash", "-c", block], cwd=tmp_path, capture_output=True, check=True, text=True)
    probabilities, label = json.loads(found.stdout)["outputs"]
    assert (probabilities["name"], probabilities["shape"]) == ("PROBS", [1, 3])
    assert label["data"] == ["red"]


def test_an_id_does_as_a_name(triton_client: Any, server: LiveServer) -> None:
    (info,) = http.get(f"{server.url}/classifiers").json()["classifiers"]
    result = triton_client.infer(info["id"], [images_input(QUERIES[0])])
    assert result.as_numpy("LABEL").tolist() == [b"red"]


def test_a_version_is_part_of_the_reference(triton_client: Any) -> None:
    assert not triton_client.is_model_ready("colours", "999999")
    with pytest.raises(triton.InferenceServerException, match="'colours@999999'"):
        triton_client.infer("colours", [images_input(QUERIES[0])], model_version="999999")


def test_mistakes_of_triton_s_client_are_told(triton_client: Any) -> None:
    numbers = triton.InferInput("IMAGE", [1, 4], "FP32")
    numbers.set_data_from_numpy(np.zeros((1, 4), dtype=np.float32))
    square = triton.InferInput("IMAGE", [1, 1], "BYTES")
    square.set_data_from_numpy(np.array([[QUERIES[0]]], dtype=object))
    other = triton.InferInput("INPUT0", [1], "BYTES")
    other.set_data_from_numpy(np.array([QUERIES[0]], dtype=object))
    none = triton.InferInput("IMAGE", [0], "BYTES")
    none.set_data_from_numpy(np.array([], dtype=object))
    shared = triton.InferInput("IMAGE", [1], "BYTES")
    shared.set_shared_memory("region", 100)
    image = images_input(QUERIES[0])
    for inputs, outputs, status, message in [
        ([numbers], None, 422, r"inputs\.0\.datatype: must be BYTES.*; received 'FP32'"),
        ([square], None, 422, r"IMAGE has the shape \[1, 1\]; send \[n\]"),
        ([other], None, 422, "'INPUT0'. Send one, 'IMAGE'"),
        ([image, other], None, 422, "'IMAGE', 'INPUT0'. Send one, 'IMAGE'"),
        ([none], None, 422, "is empty"),
        ([shared], None, 422, "shared memory is not offered"),
        ([image], [triton.InferRequestedOutput("LOGITS")], 422, "no output 'LOGITS'"),
        ([image], [triton.InferRequestedOutput("LABEL", class_count=1)], 422, "Only PROBS"),
        ([images_input(*[QUERIES[0]] * 21)], None, 413, "at most 20 images"),
        ([images_input(bytes(50001))], None, 413, "at most 50000"),
        ([images_input(QUERIES[0], b"no image")], None, 422, "Image 2 of 2"),
        ([images_input(b"")], None, 422, "empty"),
    ]:
        with pytest.raises(triton.InferenceServerException, match=message) as caught:
            triton_client.infer("colours", inputs, outputs=outputs)
        assert caught.value.status() == str(status)
    with pytest.raises(triton.InferenceServerException, match="no classifier") as caught:
        triton_client.infer("nobody", [image])
    assert caught.value.status() == "404"


def infer(server: LiveServer, body: bytes, **headers: str) -> httpx2.Response:
    return http.post(f"{server.url}/v2/models/colours/infer", content=body, headers=headers)


def message(count: int = 1, size: int | None = None, **more: Any) -> bytes:
    tensor: dict[str, Any] = {"name": "IMAGE", "datatype": "BYTES", "shape": [count]}
    if size is not None:
        tensor["parameters"] = {"binary_data_size": size}
    return json.dumps({"inputs": [{**tensor, **more}]}).encode()


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def refused(answer: httpx2.Response, status: int) -> str:
    """The message of an error in the protocol's shape."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert list(body) == ["error"]
    assert isinstance(body["error"], str)
    assert answer.headers["x-request-id"]
    return body["error"]


def test_broken_framing_is_422(server: LiveServer) -> None:
    image = framed(QUERIES[0])
    text = message(size=len(image))
    right = {"Inference-Header-Content-Length": str(len(text))}
    assert infer(server, text + image, **right).status_code == 200
    for body, length, words in [
        (text + image, "-1", "must be a number"),
        (text + image, "1e3", "must be a number"),
        (text + image, "9" * 5000, "must be a number"),
        (text + image, str(len(text + image) + 1), "and the body has"),
        (text + image, str(len(text) - 1), "not JSON"),
        (text + image + b"x", str(len(text)), "bytes follow the JSON"),
        (text + image[:-1], str(len(text)), "bytes follow the JSON"),
        (text, None, "bytes follow the JSON"),
        (message(), None, r"elements in 'data'"),
        (message(data=[]), None, "elements in 'data'"),
        (message(data=["AAAA", "AAAA"]), None, "elements in 'data'"),
        (message(size=0, data=["AAAA"]), None, "elements in 'data'"),
        (message(data=["no base64!"]), None, "IMAGE.0 is not base64"),
        (message(count=-1, data=[]), None, "send [n]"),
        (message(datatype="FP32", shape=[1, 2], data=[0.5, 1]), None, "datatype: must be BYTES"),
        (message(data=[1]), None, "should be a valid string"),
        (message(shape=["1"]), None, "should be a valid integer"),
        (b"[]", None, "an object"),
        (b'{"inputs": []}', None, "none. Send one"),
        (b'{"id": "\\ud800", "inputs": []}', None, "hex escape"),
        (b"", None, "empty"),
        (b"[" * 10_000, None, "not JSON"),
        (b"[" * 100_000, None, "opening brackets"),
    ]:
        headers = {} if length is None else {"Inference-Header-Content-Length": length}
        assert words in refused(infer(server, body, **headers), 422), body
    for elements, words in [
        (framed(b"abc")[:-1], "ends after"),
        (b"\x01", "ends after"),
        (b"\xff\xff\xff\xffabc", "ends after"),
        (image + b"\x00", "1 bytes follow the last"),
        (image + image, "bytes follow the last"),
    ]:
        text = message(size=len(elements))
        length = {"Inference-Header-Content-Length": str(len(text))}
        assert words in refused(infer(server, text + elements, **length), 422)
    assert "Content-Encoding" in refused(infer(server, text, **{"Content-Encoding": "gzip"}), 415)


def test_every_error_under_v2_is_of_its_shape(server: LiveServer) -> None:
    for method, path, status in [
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models/nobody/ready", 404),
        ("GET", "/v2/models/colours/versions/999999", 404),
        ("POST", "/v2/models/nobody/infer", 422),
        ("DELETE", "/v2", 405),
        ("GET", "/v2/models/colours/infer", 405),
    ]:
        refused(http.request(method, f"{server.url}{path}"), status)
    elsewhere = http.get(f"{server.url}/v2x")
    assert elsewhere.json()["error"]["code"] == "route_not_found"


def test_it_is_counted_as_predict_is(triton_client: Any, server: LiveServer) -> None:
    def counts() -> dict[str, float]:
        lines = http.get(f"{server.url}/metrics").text.splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    before = counts()
    triton_client.infer("colours", [images_input(*QUERIES)])
    after = counts()
    route = 'route="/v2/models/{model}/infer"'
    for name, more in [
        ('comln_predictions_total{model="tiny"}', 2),
        ('comln_images_total{operation="predict"}', 2),
        (f'comln_requests_total{{method="POST",{route},status="200"}}', 1),
    ]:
        assert after[name] - before.get(name, 0) == more, name


def test_overload_is_told_to_come_back(client_in_process: TestClient) -> None:
    engine = client_in_process.app.state.engine  # type: ignore[attr-defined]
    body = message(data=[base64.b64encode(QUERIES[0]).decode()])
    with ExitStack() as busy:
        for _ in range(64):  # each so small that it may take the last places
            busy.enter_context(engine.images.admit(engine.settings.max_pending_images // 64))
        answer = client_in_process.post("/v2/models/colours/infer", content=body)
        assert "The server is busy" in refused(answer, 429)
        assert answer.headers["retry-after"] == "1"
    assert client_in_process.post("/v2/models/colours/infer", content=body).status_code == 200


def test_a_bug_and_a_stopping_server_answer_in_that_shape(client_in_process: TestClient) -> None:
    state = client_in_process.app.state  # type: ignore[attr-defined]
    state.draining = True
    assert "stopping" in refused(client_in_process.get("/v2/health/ready"), 503)
    assert "stopping" in refused(client_in_process.get("/v2/models/colours/ready"), 503)
    state.draining = False
    del state.engine
    assert "did not expect" in refused(client_in_process.get("/v2/models/colours"), 500)


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
parameters = st.fixed_dictionaries(
    {},
    optional={
        "binary_data_size": st.integers(-1, 200) | junk,
        "binary_data": st.booleans() | junk,
        "binary_data_output": st.booleans() | junk,
        "classification": st.integers(-1, 2**70) | junk,
    },
)
tensors = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["IMAGE", "PROBS", "LABEL"]) | junk,
        "datatype": st.just("BYTES") | junk,
        "shape": st.lists(st.integers(-1, 2**70), max_size=2) | junk,
        "parameters": parameters,
        "data": st.lists(st.just(base64.b64encode(QUERIES[0]).decode()) | st.text(), max_size=2),
    },
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text() | junk,
        "inputs": st.lists(tensors, min_size=1, max_size=2) | junk,
        "outputs": st.lists(tensors, max_size=2) | junk,
        "parameters": parameters,
    },
).map(encoded)
right = st.integers(1, 3).map(lambda n: message(n, n * len(framed(QUERIES[0]))))
elements = st.lists(st.just(framed(QUERIES[0])) | st.binary(max_size=40), max_size=3).map(b"".join)


@fuzzing.settings(200)
@hypothesis.given(
    text=right | messages | st.binary(max_size=60),
    behind=elements,
    slip=st.just(0) | st.integers(-5, 5),
    header=st.booleans(),
)
def test_any_body_gets_an_answer_of_the_protocol(
    server: LiveServer, text: bytes, behind: bytes, slip: int, header: bool
) -> None:
    """Whatever is sent gets an answer in the protocol's shape, and never a 5xx."""
    length = {"Inference-Header-Content-Length": str(len(text) + slip)} if header else {}
    answer = infer(server, text + behind, **length)
    hypothesis.event(f"{answer.status_code}")
    if answer.status_code == 200:
        assert b"PROBS" in answer.content or b"LABEL" in answer.content
    else:
        assert answer.status_code < 500, answer.text
        refused(answer, answer.status_code)


def test_damaged_requests_get_an_answer_of_the_protocol(server: LiveServer) -> None:
    """A right request with some bytes changed, lost or added: in JSON, lengths or the file."""
    rng = np.random.default_rng(0)
    tensor = framed(QUERIES[1])
    whole = message(size=len(tensor)) + tensor
    json_length = len(whole) - len(tensor)
    statuses: list[int] = []
    for _ in range(150):
        body = bytearray(whole)
        where = int(rng.integers(0, json_length + 200))
        match int(rng.integers(4)):
            case 0:
                body[where] = int(rng.integers(256))
            case 1:
                del body[where : where + int(rng.integers(1, 9))]
            case 2:
                body[where:where] = rng.bytes(int(rng.integers(1, 9)))
            case _:
                body[-where:] = rng.bytes(where)
        length = {"Inference-Header-Content-Length": str(json_length)}
        answer = infer(server, bytes(body), **length)
        statuses.append(answer.status_code)
        if answer.status_code != 200:
            assert answer.status_code < 500, (bytes(body), answer.text)
            refused(answer, answer.status_code)
    assert {200, 422} <= set(statuses), "neither all harmless nor all hopeless"
