"""Triton through PyTriton: the Open Inference Protocol with binary tensors, its dynamic batches."""

import os

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from work import Classifier

PORT = int(os.environ["PORT"])


def instance(classifier: Classifier):
    @batch
    def predict(image: np.ndarray) -> dict[str, np.ndarray]:
        answers = classifier.predict(np.stack([classifier.decode(file) for (file,) in image]))
        return {"label": np.array([[str(answer["label"]).encode()] for answer in answers], dtype=object)}

    return predict


if __name__ == "__main__":
    config = TritonConfig(http_port=PORT, grpc_port=PORT + 1, metrics_port=PORT + 2, http_address="127.0.0.1")
    with Triton(config=config) as triton:
        triton.bind(
            model_name="photos",
            infer_func=[instance(Classifier(int(os.environ["THREADS"]))) for _ in range(int(os.environ["WORKERS"]))],
            inputs=[Tensor(name="image", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="label", dtype=bytes, shape=(1,))],
            config=ModelConfig(
                max_batch_size=int(os.environ["BATCH"]), batcher=DynamicBatcher(max_queue_delay_microseconds=2000)
            ),
            strict=False,
        )
        triton.serve()
