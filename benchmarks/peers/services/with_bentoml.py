"""A service with BentoML: one image a call, or its adaptive batches."""

import os

import bentoml
import numpy as np
from PIL import Image
from work import Classifier

WORKERS, BATCH = int(os.environ["WORKERS"]), int(os.environ["BATCH"])


@bentoml.service(workers=WORKERS, threads=8, traffic={"timeout": 60})
class Service:
    def __init__(self) -> None:
        self.classifier = Classifier(int(os.environ["THREADS"]))

    if BATCH > 1:

        @bentoml.api(batchable=True, max_batch_size=BATCH, max_latency_ms=60_000)
        def predict(self, image: list[Image.Image]) -> list[dict]:
            return self.classifier.predict(np.stack([self.classifier.fit(one) for one in image]))

    else:

        @bentoml.api
        def predict(self, image: Image.Image) -> dict:
            return self.classifier.predict(self.classifier.fit(image)[None])[0]
