"""A service with FastAPI, as its documentation writes blocking work: a plain function, run in the thread pool."""

import os
from typing import Annotated

from fastapi import FastAPI, File
from work import Classifier

app = FastAPI()
classifier = Classifier(int(os.environ["THREADS"]))


@app.post("/predict")
def predict(image: Annotated[bytes, File()]) -> dict[str, object]:
    return classifier.predict(classifier.decode(image)[None])[0]
