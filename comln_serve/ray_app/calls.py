"""Calls of embedding replicas, and what their failures mean to a client."""

import logging
import time
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, RayServeException, RequestCancelledError
from ray.serve.handle import DeploymentHandle

from comln_serve.engine.cancellation import client_gone
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.ray_app.embedding import Served

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS = 3


class EmbeddingReplicas:
    """The replicas behind a handle of an `Embedding` deployment. Safe from many threads."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    def embed(self, embedder_sha256: str, images: NDArray[np.uint8]) -> "Call[NDArray[np.float32]]":
        """Begin `Embedding.embed` on one of them."""
        return Call(self._handle, "embed", embedder_sha256, images)

    def describe(self) -> Served:
        """What one of them says of itself; waits until there is one."""
        call: Call[Served] = Call(self._handle, "describe")
        return call.result(None)

    def check(self) -> None:
        """Whether one is running, as Ray Serve's controller knows.

        The controller is asked, not a replica: one that is busy is no reason to turn clients away.

        Raises:
            ServiceError: NOT_READY.
        """
        application = serve.status().applications.get(self._handle.app_name)
        deployments = {} if application is None else application.deployments
        status = deployments.get(self._handle.deployment_name)
        states = (
            {}
            if status is None
            else {str(state): count for state, count in status.replica_states.items()}
        )
        if not states.get("RUNNING"):
            raise ServiceError(
                ErrorCode.NOT_READY,
                "No replica that embeds images is running at the moment; try again in a moment.",
                embedding_replicas=states,
            )


class Call(Generic[T]):
    """One call under way; it is made again where its replica dies, as embedding changes nothing."""

    def __init__(self, handle: DeploymentHandle[Any], method: str, *arguments: object) -> None:
        self._method, self._arguments = getattr(handle, method), arguments
        self._lock = Lock()
        self._cancelled = False
        self._response = self._method.remote(*arguments)

    def cancel(self) -> None:
        """Drop it, wherever it is; whoever waits for it gets CLIENT_GONE."""
        with self._lock:
            self._cancelled = True
            response = self._response
        response.cancel()

    def result(self, timeout_s: float | None) -> T:
        """What the replica returns.

        Raises:
            TimeoutError: not within `timeout_s`; it goes on.
            ServiceError: the replica's; OVERLOADED, too many calls wait for a replica; NOT_READY,
                replica after replica died; CLIENT_GONE, cancelled; INTERNAL.
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
                raise _explained(error) from error
            else:
                return result
        raise ServiceError(
            ErrorCode.NOT_READY,
            f"{_ATTEMPTS} replicas that were to embed the images ended one after another. Nothing "
            "was changed; try again, or tell the operator.",
        )

    def _send_again(self) -> None:
        with self._lock:
            if self._cancelled:
                raise client_gone()
            self._response = self._method.remote(*self._arguments)


def _explained(error: RayError | RayServeException) -> ServiceError:
    """The error a client is to see."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, ServiceError):
        return error.cause
    if isinstance(error, BackPressureError):
        return ServiceError(
            ErrorCode.OVERLOADED,
            "The server is busy: too many images wait for a replica that embeds. Try again in a "
            "moment.",
        )
    if isinstance(error, TaskCancelledError | RequestCancelledError):
        return client_gone()
    if isinstance(error, RayServeException):
        logger.warning("embedding replicas cannot be called: %s", error)
        return ServiceError(
            ErrorCode.NOT_READY,
            "No replica that embeds images can be reached; try again in a moment.",
        )
    logger.error("embedding failed", exc_info=error)
    return ServiceError(
        ErrorCode.INTERNAL,
        "Embedding the images failed; the server's log has the details. Try again.",
    )
