"""The HTTP routes: each reads the request, calls the engine and writes the answer."""

from fastapi import APIRouter

from comln_serve.api.routes import adaptation, classifiers, examples, export, limits, models, operations

router = APIRouter()
for part in (adaptation, classifiers, examples, export, limits, models, operations):
    router.include_router(part.router)
