"""`GET /limits`."""

from fastapi import APIRouter, Request

from comln_serve.api import schemas
from comln_serve.api.authentication import USING, needs, requests_per_minute_of
from comln_serve.api.receive.limits import limits_of
from comln_serve.api.work import engine_of

router = APIRouter()


@router.get("/limits", tags=["models"], summary="What a request may have")
@needs(*USING)
async def limits(request: Request) -> schemas.Limits:
    """What a program has to know to send as much as it may. A request over a limit is answered with an error that names
    it.
    """
    engine = engine_of(request)
    return limits_of(engine.settings, engine.formats, requests_per_minute_of(request))
