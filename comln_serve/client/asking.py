"""Asks the server: sends a request until it is answered, and turns what is no success into errors."""

import logging
import ssl
import time
from collections.abc import Mapping
from random import SystemRandom
from typing import Any, TypeVar, cast

import httpx2

from comln_serve.client.errors import ComlnError, InputError, NoAnswerError, NotFoundError
from comln_serve.client.results import Limits, Rejected, Rejections
from comln_serve.client.session import Request, Session
from comln_serve.client.wire import parse

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0
# A call that takes longer because of repeated attempts says so.
_SILENT_S = 3.0
# Attempts at what rarely gets better: an address that has never answered, failures inside the server, and answers that
# cannot be decoded.
_FEW = 3
# Nothing was done with a request that is answered so.
_UNTOUCHED = {"rate_limited", "overloaded", "queue_timeout"}
# The request was not sent, or not to the end.
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

# What OpenSSL calls an answer that is not TLS, in its versions.
_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}

_jitter = SystemRandom()


async def ask(session: Session, request: Request, *, seconds: float | None = None) -> httpx2.Response:
    """Send a request until its answer is a success.

    Repeated are requests that the server has no room for (429, 503), those that it certainly did nothing with, and,
    where a request is repeatable, those whose connection broke or that failed inside the server (5xx).

    Args:
        seconds: no attempt begins later than this after the first, and an address that has never answered is asked
            until then, too; default: the session's `retry_seconds`, and few attempts at such an address.

    Raises:
        InputError: the client was closed, or a text of the request is not valid Unicode, or too long for an address.
        ComlnError: the answer is no success.
        NoAnswerError: there is no answer, or it cannot be decoded.
    """
    allowed = session.retry_seconds if seconds is None else seconds
    began, attempt = time.monotonic(), 0
    while True:
        if session.http.is_closed:  # perhaps by another thread, while this one waited
            raise InputError("this client was closed, by close() or the end of its `with` block; make another one")
        attempt += 1
        try:
            answer = await session.send(request)
        except UnicodeEncodeError as failure:
            around = failure.object[max(0, failure.start - 40) : failure.end + 40]
            raise InputError(f"{around!r} is not valid Unicode, and cannot be sent") from None
        except httpx2.InvalidURL as failure:  # an argument of tens of thousands of characters
            raise InputError(f"{request.path[:100]!r}... makes no address: {failure}") from None
        except httpx2.RequestError as failure:
            error: ComlnError = _no_answer(session, failure, attempt, time.monotonic() - began)
            error.__cause__ = failure
            may_pass = (session.answered or seconds is not None) and not isinstance(failure, httpx2.DecodingError)
            again = (request.repeatable or isinstance(failure, _NEVER_SENT)) and (may_pass or attempt < _FEW)
            asked_for = None
        else:
            session.answered = True
            if answer.is_success:
                return answer
            error = _error_of(session, request, answer)
            again = _is_worth_repeating(error, request, attempt)
            asked_for = _retry_after(answer)
        backoff = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(attempt - 1, 10)) * _jitter.uniform(0.75, 1.25)
        elapsed = time.monotonic() - began
        wait = max(asked_for, backoff * 0.1) if asked_for is not None else min(backoff, allowed - elapsed)
        if not again or not 0.0 < wait <= allowed - elapsed:
            raise error
        if elapsed + wait > _SILENT_S:
            logger.warning("%s %s is tried again in %.1f s: %s", request.method, request.path, wait, error)
        await session.sleep(wait)


async def ask_for(session: Session, kind: type[_T], request: Request, *, seconds: float | None = None) -> _T:
    """`ask`, and parse the answer as a `kind`. Raises ComlnError also if it is not what comln-serve answers."""
    answer = await ask(session, request, seconds=seconds)
    return _read(session, kind, request, answer)


async def ask_partially(session: Session, kind: type[_T], request: Request) -> tuple[_T, tuple[Rejected, ...]]:
    """`ask_for` of a request that may go on without some of its images. Returns these, too."""
    answer = await ask(session, request)
    return _read(session, kind, request, answer), _read(session, Rejections, request, answer).rejected


def _read(session: Session, kind: type[_T], request: Request, answer: httpx2.Response) -> _T:
    try:
        return parse(kind, answer.json())
    except ValueError as error:
        raise ComlnError(
            f"{session.url} answered {request.method} {request.path} with {answer.status_code}, but not as comln-serve "
            f"does ({error}). Is this its address, and is its version that of the client?",
            status=answer.status_code,
        ) from error


async def known_limits(session: Session) -> Limits:
    """The session's limits. The server is asked once."""
    if session.limits is None:
        session.limits = await ask_for(session, Limits, Request("GET", "/limits"))
    return session.limits


def _is_worth_repeating(error: ComlnError, request: Request, attempt: int) -> bool:
    may_pass = error.status in (502, 503) or (error.status in (500, 504) and attempt < _FEW)
    return error.status == 429 or error.code in _UNTOUCHED or (request.repeatable and may_pass)


def _retry_after(answer: httpx2.Response) -> float | None:
    """Seconds of the header Retry-After; None without the header, or if it is a date."""
    text = answer.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 7 else None


def _no_answer(session: Session, failure: httpx2.RequestError, attempts: int, seconds: float) -> NoAnswerError:
    server = f"the server at {session.url}"
    tried = f" ({attempts} attempts in {seconds:.0f} s)" if attempts > 1 else ""
    why = str(failure) or type(failure).__name__
    if isinstance(failure, httpx2.TimeoutException):
        why = f"no answer in time ({type(failure).__name__})"
    tls = _tls_failure(failure)
    if tls is not None and tls.reason in _NO_TLS:
        plain = session.url.replace("https:", "http:", 1)
        return NoAnswerError(f"{server} does not speak TLS; try {plain}")
    if isinstance(tls, ssl.SSLCertVerificationError):
        return NoAnswerError(
            f"the certificate of {server} cannot be trusted: {tls.verify_message}. If an authority of your own signed "
            "it, give the authority's certificate: the file's name in the variable SSL_CERT_FILE, or Client(verify=...)"
        )
    if isinstance(failure, httpx2.ReadTimeout | httpx2.WriteTimeout):  # connected, so there is a server
        return NoAnswerError(f"{server} gave {why}{tried}. Give it longer: timeout=... or --timeout, in seconds")
    undecoded = isinstance(failure, httpx2.DecodingError)
    if session.answered or undecoded:
        what, state = ("answer of", "cannot be decoded") if undecoded else ("connection to", "failed")
        return NoAnswerError(f"the {what} {session.url} {state}: {why}{tried}")
    if isinstance(failure, httpx2.RemoteProtocolError | httpx2.ReadError):
        secure = session.url.replace("http:", "https:", 1)
        hint = f"; if it speaks TLS, try {secure}" if secure != session.url else ""
        return NoAnswerError(f"{server} ended the connection without an answer: {why}{tried}{hint}")
    return NoAnswerError(
        f"no server can be reached at {session.url}: {why}{tried}. Start one (comln-serve), or give the address of "
        "one: url=..., --url or COMLN_URL"
    )


def _tls_failure(failure: BaseException) -> ssl.SSLError | None:
    """The failure of TLS that caused another, if one did."""
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _error_of(session: Session, request: Request, answer: httpx2.Response) -> ComlnError:
    """The error of an answer that is not a success."""
    status, request_id = answer.status_code, answer.headers.get("x-request-id")
    try:
        body: Any = answer.json()["error"]
        code, message, detail = body["code"], body["message"], body["detail"]
        request_id = request_id or body["request_id"]
    except (ValueError, KeyError, TypeError):
        to = f" to {answer.headers['location']}" if "location" in answer.headers else ""
        return ComlnError(
            f"{session.url} answered {request.method} {request.path} with {status}{to}, but not as comln-serve does: "
            f"a proxy before it, or another program at this address{_root(session.url)}",
            status=status,
            request_id=request_id,
        )
    if code in ("route_not_found", "method_not_allowed"):
        of = f"{session.url} must be the address of the server itself, of this client's release or a later one"
        message = f"{message} {of}{_root(session.url)}"
    kind = NotFoundError if status == 404 else ComlnError
    known = cast("Mapping[str, Any]", detail) if isinstance(detail, dict) else {}
    return kind(str(message), code=str(code), detail=known, status=status, request_id=request_id)


def _root(url: str) -> str:
    """What to try where an address has a path."""
    parsed = httpx2.URL(url)
    return "" if parsed.path in ("", "/") else f"; perhaps {parsed.copy_with(raw_path=b'/')}"
