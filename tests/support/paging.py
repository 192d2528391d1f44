"""All classifiers of a server, page by page."""

from typing import Any

import httpx2


def all_classifiers(session: httpx2.Client, limit: int = 50, **filters: str) -> list[dict[str, Any]]:
    """What `GET /classifiers` lists, newest first."""
    found: list[dict[str, Any]] = []
    position: dict[str, int] = {}
    while True:
        answer = session.get("/classifiers", params={"limit": limit, **filters, **position})
        page = answer.raise_for_status().json()
        found += page["classifiers"]
        if page["next"] is None:
            return found
        position = {"before": page["next"]}
