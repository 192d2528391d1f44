"""The servers that are compared: how each is installed, started and asked."""

import base64
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks.publishing import ROOT
from benchmarks.serving import CONTENT_TYPE, form
from comln_serve.machine import Provider

SERVICES = Path(__file__).parent / "services"
ENVIRONMENTS = ROOT / ".peers"

# Bytes of the JSON before a binary tensor, filled with spaces: requests of one load share their headers.
_HEAD = 160
_DISTRIBUTION = "/usr/bin/python3"
# The same ONNX Runtime everywhere.
_NETWORK = (f"onnxruntime=={onnxruntime.__version__}", "pillow", "numpy")


@dataclass(frozen=True)
class Setting:
    """What is searched over: processes, threads of ONNX Runtime in each, largest batch."""

    workers: int
    threads: int
    batch: int = 1

    def __str__(self) -> str:
        alone = f"{self.workers} x {self.threads}"
        return f"{alone}, batches of {self.batch}" if self.batch > 1 else alone


@dataclass(frozen=True)
class Request:
    """A POST of one image file."""

    path: str
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Peer:
    """One server.

    Attributes:
        packages: what its environment holds, ONNX Runtime and Pillow apart; none: this project's own.
        source: the file of its service; None: nothing is to be written.
        command: of the server, run in its environment with `environment` as environment variables.
        request: of an image file. label: the class in the JSON (or the bytes) of an answer.
        ready: path that answers 200 when it can serve.
        settings: to choose from.
        interpreter: that its environment is made with.
    """

    name: str
    packages: tuple[str, ...]
    source: str | None
    command: Callable[[Path, Setting, int], list[str]]
    request: Callable[[bytes], Request]
    label: Callable[[bytes], str]
    ready: str
    settings: tuple[Setting, ...]
    interpreter: str = sys.executable

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return ENVIRONMENTS / self.name / "bin" / "python" if self.packages else Path(sys.executable)

    @property
    def requirements(self) -> tuple[str, ...]:
        """Everything its environment holds."""
        return (*self.packages, *_NETWORK)

    @property
    def lines(self) -> int:
        """Lines of code of its service, without those of `work.py`, blank ones and docstrings."""
        if self.source is None:
            return 0
        text = (SERVICES / self.source).read_text("utf-8").partition('"""\n')[2]
        return sum(bool(line.strip()) for line in text.splitlines())


def environment(work: Path, setting: Setting, port: int) -> dict[str, str]:
    """Environment variables that the services read."""
    return {
        "WORK": str(work),
        "PYTHONPATH": str(SERVICES),
        "WORKERS": str(setting.workers),
        "THREADS": str(setting.threads),
        "BATCH": str(setting.batch),
        "PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "BENTOML_DO_NOT_TRACK": "True",
    }


def _upload(file: bytes) -> Request:
    """A multipart form with one file."""
    return Request("/predict", CONTENT_TYPE, form([file], [], name="image"))


def _label(answer: bytes) -> str:
    return str(json.loads(answer)["label"])


def _bentoml_label(answer: bytes) -> str:
    """A method that takes batches answers a list."""
    content = json.loads(answer)
    return str((content[0] if isinstance(content, list) else content)["label"])


def _base64(file: bytes) -> Request:
    return Request("/predict", "application/json", json.dumps({"image": base64.b64encode(file).decode()}).encode())


def _protocol(file: bytes) -> Request:
    """The Open Inference Protocol in JSON."""
    content = base64.b64encode(file).decode()
    parameters = {"content_type": "base64"}
    image = {"name": "image", "shape": [1, 1], "datatype": "BYTES", "parameters": parameters, "data": [content]}
    return Request("/v2/models/photos/infer", "application/json", json.dumps({"inputs": [image]}).encode())


def _binary_protocol(file: bytes) -> Request:
    """The same with its extension of binary tensors: a header, and each element behind its length."""
    tensor = len(file).to_bytes(4, "little") + file
    size = {"binary_data_size": len(tensor)}
    image = {"name": "image", "shape": [1, 1], "datatype": "BYTES", "parameters": size}
    head = json.dumps({"inputs": [image]}).encode().ljust(_HEAD)
    length = ("Inference-Header-Content-Length", str(len(head)))
    return Request("/v2/models/photos/infer", "application/octet-stream", head + tensor, (length,))


def _protocol_label(answer: bytes) -> str:
    output: dict[str, Any] = json.loads(answer)["outputs"][0]
    return str(output["data"][0])


def _start_fastapi(python: Path, setting: Setting, port: int) -> list[str]:
    flags = ["--workers", str(setting.workers), "--port", str(port), "--no-access-log"]
    return [str(python), "-m", "uvicorn", "plain_fastapi:app", "--host", "127.0.0.1", *flags]


def _start_bentoml(python: Path, _setting: Setting, port: int) -> list[str]:
    where = ["--working-dir", str(SERVICES), "--host", "127.0.0.1", "--port", str(port)]
    return [str(python), "-m", "bentoml", "serve", "with_bentoml:Service", *where]


def _start_script(name: str) -> Callable[[Path, Setting, int], list[str]]:
    return lambda python, _setting, _port: [str(python), str(SERVICES / name)]


def mlserver_files(folder: Path, setting: Setting, port: int) -> None:
    """MLServer's two files of settings."""
    server = {
        "http_port": port,
        "grpc_port": port + 1,
        "metrics_port": port + 2,
        "host": "127.0.0.1",
        "parallel_workers": setting.workers if setting.workers > 1 else 0,
        "use_structured_logging": False,
    }
    batches = {"max_batch_size": setting.batch, "max_batch_time": 0.005} if setting.batch > 1 else {}
    model = {"name": "photos", "implementation": "with_mlserver.Runtime", **batches}
    (folder / "settings.json").write_text(json.dumps(server), "utf-8")
    (folder / "model-settings.json").write_text(json.dumps(model), "utf-8")


def _start_mlserver(python: Path, _setting: Setting, _port: int) -> list[str]:
    return [str(python.parent / "mlserver"), "start", "."]


def own(name: str, provider: Provider, classifier: str) -> Peer:
    """This server, with a classifier that it made."""

    def start(python: Path, setting: Setting, port: int) -> list[str]:
        flags = ["--port", str(port), "--workers", str(setting.workers), "--provider", provider]
        files = ["--models-dir", "models", "--database-url", "sqlite:///classifiers.db"]
        return [str(python), "-m", "comln_serve.cli", *flags, *files]

    return Peer(
        name=name,
        packages=(),
        source=None,
        command=start,
        request=lambda file: Request("/predict", CONTENT_TYPE, form([file], [("classifier", classifier)])),
        label=lambda answer: str(json.loads(answer)["predictions"][0]["label"]),
        ready="/health/ready",
        settings=(Setting(1, 2), Setting(2, 1)),
    )


PEERS = (
    Peer(
        name="fastapi",
        packages=("fastapi>=0.115", "uvicorn[standard]>=0.30", "python-multipart"),
        source="plain_fastapi.py",
        command=_start_fastapi,
        request=_upload,
        label=_label,
        ready="/docs",
        settings=(Setting(1, 1), Setting(1, 2), Setting(2, 1)),
    ),
    Peer(
        name="litserve",
        packages=("litserve>=0.2",),
        source="with_litserve.py",
        command=_start_script("with_litserve.py"),
        request=_base64,
        label=_label,
        ready="/health",
        settings=(Setting(1, 2), Setting(2, 1), Setting(1, 2, 32), Setting(2, 1, 32)),
    ),
    Peer(
        name="bentoml",
        packages=("bentoml>=1.4",),
        source="with_bentoml.py",
        command=_start_bentoml,
        request=_upload,
        label=_bentoml_label,
        ready="/readyz",
        settings=(Setting(1, 1), Setting(2, 1), Setting(1, 2, 32), Setting(2, 1, 32)),
    ),
    Peer(
        name="mlserver",
        # Its processes do not start with newer releases of uvloop (seen with 1.7.1 and 0.22).
        packages=("mlserver>=1.6", "uvloop<0.22"),
        source="with_mlserver.py",
        command=_start_mlserver,
        request=_protocol,
        label=_protocol_label,
        ready="/v2/models/photos/ready",
        settings=(Setting(1, 2), Setting(2, 1), Setting(1, 2, 32), Setting(2, 1, 32)),
    ),
    Peer(
        name="triton",
        packages=("nvidia-pytriton",),
        source="with_triton.py",
        command=_start_script("with_triton.py"),
        request=_binary_protocol,
        label=_protocol_label,
        ready="/v2/models/photos/ready",
        settings=(Setting(1, 2, 32), Setting(2, 1, 8), Setting(2, 1, 32)),
        # PyTriton's processes run in an interpreter that it brings, with the standard library of this one: the
        # distribution's fits, one of another patch release may not (seen with 0.7.0 and 3.11.7).
        interpreter=_DISTRIBUTION if Path(_DISTRIBUTION).exists() else sys.executable,
    ),
)
