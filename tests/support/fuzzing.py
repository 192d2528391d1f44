"""The server's operations, and requests to them that Schemathesis makes from the OpenAPI document."""

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import requests
from fastapi.routing import APIRoute
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from comln_serve.api.open_inference.routes import router as open_inference
from comln_serve.api.routes import ROUTERS

OPERATIONS_WITH_INPUT = [
    ("POST", "/adapt"),
    ("POST", "/predict"),
    ("POST", "/classifiers/{ref}/examples"),
    ("POST", "/classifiers/{ref}/labels"),
    ("POST", "/classifiers/{ref}/examples/labels"),
    ("PATCH", "/classifiers/{ref}"),
    ("GET", "/classifiers"),
    ("POST", "/classifiers"),
    ("GET", "/classifiers/{ref}/examples/{number}/thumbnail"),
    ("POST", "/classifiers/{ref}/promote"),
    ("DELETE", "/classifiers/{ref}/examples"),
    ("GET", "/classifiers/{ref}/export"),
    ("POST", "/v2/models/{model}/infer"),
    ("POST", "/v2/models/{model}/versions/{version}/infer"),
]
OPERATIONS = [
    (method, route.path)
    for router in (*ROUTERS, open_inference)
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods)
]
# A few requests in each run of the tests, many in that of the slow ones.
few_or_many = pytest.mark.parametrize("examples", [20, pytest.param(50, marks=pytest.mark.slow)])


def settings(examples: int) -> hypothesis.settings:
    """The same requests in every run, as many as `examples`."""
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def try_all(
    cases: st.SearchStrategy[Any],
    examples: int,
    prepare: Callable[[Any, st.DataObject], object] = lambda case, data: None,
) -> set[int]:
    """Send requests; each has to get a documented status below 500 and a body of the documented shape.

    Args:
        cases: an operation's requests.
        prepare: changes a request before it is sent, and draws what it needs for that.

    Returns:
        The statuses that were answered.
    """
    seen: set[int] = set()
    with requests.Session() as session:

        @settings(examples)
        @hypothesis.given(case=cases, data=st.data())
        def check(case: Any, data: st.DataObject) -> None:
            prepare(case, data)
            answer = case.call(session=session)
            assert answer.status_code < 500, answer.text
            case.validate_response(answer, checks=[status_code_conformance, response_schema_conformance])
            seen.add(answer.status_code)

        check()
    return seen
