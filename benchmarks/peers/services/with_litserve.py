"""A service with LitServe: files in base64, as its examples send images; decoding and the network in its workers."""

import base64
import os
from typing import Any

import litserve
import numpy as np
from work import Classifier


class Api(litserve.LitAPI):
    def setup(self, device: str) -> None:  # noqa: ARG002 (the API's)
        self.classifier = Classifier(int(os.environ["THREADS"]))

    def decode_request(self, request):  # LitServe reads annotations here as those of FastAPI
        return self.classifier.decode(base64.b64decode(request["image"]))

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        return np.stack(inputs)

    def predict(self, x: np.ndarray) -> Any:
        return self.classifier.predict(x) if x.ndim == 4 else self.classifier.predict(x[None])[0]

    def unbatch(self, output: Any) -> Any:
        return output

    def encode_response(self, output):
        return output


if __name__ == "__main__":
    api = Api(max_batch_size=int(os.environ["BATCH"]), batch_timeout=0.005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=int(os.environ["WORKERS"]))
    server.run(port=int(os.environ["PORT"]), host="127.0.0.1", generate_client_file=False, log_level="warning")
