"""The HTTP routes: read, call the engine, write. No decisions are made here."""

from fastapi import APIRouter

from comln_serve.api.routes import adaptation, classifiers, examples, export, models, operations

router = APIRouter()
for part in (adaptation, classifiers, examples, export, models, operations):
    router.include_router(part.router)
