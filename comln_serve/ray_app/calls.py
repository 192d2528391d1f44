"""Calls embedding replicas, and translates their failures into errors for clients."""

import logging
import time
from threading import Lock
from typing import Any, Generic, TypeVar

from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, RayServeException, RequestCancelledError
from ray.serve.handle import DeploymentHandle

from comln_serve.engine.cancellation import client_gone
from comln_serve.engine.embedding.job import embedding_failed
from comln_serve.errors import ErrorCode, ServiceError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS = 3


def check_replicas(handle: DeploymentHandle[Any]) -> None:
    """Check that a replica of a deployment is running.

    Asks Ray Serve's controller, not a replica: busy replicas must not fail the check.

    Raises:
        ServiceError: NOT_READY.
    """
    application = serve.status().applications.get(handle.app_name)
    deployments = {} if application is None else application.deployments
    status = deployments.get(handle.deployment_name)
    states = {} if status is None else {str(state): count for state, count in status.replica_states.items()}
    if not states.get("RUNNING"):
        raise ServiceError(
            ErrorCode.NOT_READY,
            "No replica that embeds images is running at the moment; try again in a moment.",
            embedding_replicas=states,
        )


class Call(Generic[T]):
    """A running call of a method of one of a deployment's replicas. Thread-safe.

    It is repeated if its replica dies: embedding changes nothing.
    """

    def __init__(self, handle: DeploymentHandle[Any], method: str, *arguments: object) -> None:
        self._method, self._arguments = getattr(handle, method), arguments
        self._lock = Lock()
        self._cancelled = False
        self._response = self._method.remote(*arguments)

    def cancel(self) -> None:
        """Cancel the call; `result` then raises CLIENT_GONE."""
        with self._lock:
            self._cancelled = True
            response = self._response
        response.cancel()

    def result(self, timeout_s: float | None) -> T:
        """Wait for the replica's result.

        Raises:
            TimeoutError: no result within `timeout_s`; the call goes on.
            ServiceError: the replica's; OVERLOADED, too many calls wait for a replica; NOT_READY,
                several replicas died; CLIENT_GONE, cancelled; INTERNAL.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for attempt in range(1, _ATTEMPTS + 1):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                result: T = self._response.result(timeout_s=left)
            except RayActorError as error:
                logger.warning("embedding replica %d of a call is gone: %s", attempt, error)
                if attempt < _ATTEMPTS:
                    self._send_again()
            except TimeoutError:
                raise
            except (RayError, RayServeException) as error:
                raise _to_service_error(error) from error
            else:
                return result
        raise ServiceError(
            ErrorCode.NOT_READY,
            f"{_ATTEMPTS} replicas that were to embed the images ended one after another. Nothing "
            "was changed; try again, or tell the operator.",
        )

    def _send_again(self) -> None:
        # Sent without the lock: `cancel` takes it on the event loop, which must not wait for Ray.
        response = self._method.remote(*self._arguments)
        with self._lock:
            self._response, cancelled = response, self._cancelled
        if cancelled:
            response.cancel()
            raise client_gone()


def _to_service_error(error: RayError | RayServeException) -> ServiceError:
    """The error that the client gets."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, ServiceError):
        return error.cause
    if isinstance(error, BackPressureError):
        return ServiceError(
            ErrorCode.OVERLOADED,
            "The server is busy: too many images wait for a replica that embeds. Try again in a moment.",
        )
    if isinstance(error, TaskCancelledError | RequestCancelledError):
        return client_gone()
    if isinstance(error, RayServeException):
        logger.warning("embedding replicas cannot be called: %s", error)
        return ServiceError(ErrorCode.NOT_READY, "No replica that embeds images can be reached; try again in a moment.")
    logger.error("embedding failed", exc_info=error)
    return embedding_failed()
