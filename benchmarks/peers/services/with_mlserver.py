"""A runtime for MLServer: the Open Inference Protocol, image files in base64, its adaptive batches."""

import os

import numpy as np
from mlserver import MLModel
from mlserver.codecs import Base64Codec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse
from work import Classifier


class Runtime(MLModel):
    async def load(self) -> bool:
        self.classifier = Classifier(int(os.environ["THREADS"]))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        files = Base64Codec.decode_input(payload.inputs[0])
        answers = self.classifier.predict(np.stack([self.classifier.decode(file) for file in files]))
        labels = [str(answer["label"]) for answer in answers]
        return InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("label", labels)])
