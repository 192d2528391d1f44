"""https by a certificate made here, with a real client that checks it."""

import shutil
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
import trustme

from comln_serve.cli import main
from comln_serve.client import Client, NoAnswerError
from tests.support.image_files import colour_support
from tests.support.live import LiveServer, live_server
from tests.support.messages import adapt_form, predict_form
from tests.support.sockets import connect
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

Files = tuple[Path, Path]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    for pem in issued.cert_chain_pems:
        pem.write_to_path(str(certificate), append=True)
    issued.private_key_pem.write_to_path(str(key))
    return certificate, key


@pytest.fixture(scope="module")
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """What a client takes that trusts the authority."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def flags(files: Files) -> tuple[str, ...]:
    certificate, key = map(str, files)
    return "--tls-certificate", certificate, "--tls-key", key


@pytest.fixture(scope="module")
def server(
    models_dir: Path, files: Files, trusting: ssl.SSLContext, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    with live_server(models_dir, tmp_path_factory.mktemp("server"), *flags(files), verify=trusting) as server:
        yield server
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def client(server: LiveServer, trusting: ssl.SSLContext) -> Iterator[httpx2.Client]:
    with httpx2.Client(verify=trusting, base_url=server.url) as client:
        yield client


def test_https_is_served_with_the_certificate(server: LiveServer, client: httpx2.Client) -> None:
    assert server.url.startswith("https://")
    assert client.post("/adapt", **adapt_form(colour_support(), name="known")).is_success
    assert client.post("/predict", **predict_form(colour_support()[0][0])).is_success
    with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx2.get(f"{server.url}/health/live")
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{server.url.replace('https', 'http')}/health/live")
    with pytest.raises(NoAnswerError, match="cannot be trusted: unable to get local issuer certificate"):
        Client(server.url).live()
    with pytest.raises(NoAnswerError, match=f"ended the connection .* try {server.url}"):
        Client(server.url.replace("https", "http")).live()
    assert client.get("/health/ready").status_code == 200


def test_a_renewed_certificate_is_served_without_a_restart(
    models_dir: Path, tmp_path: Path, files: Files, authority: trustme.CA, trusting: ssl.SSLContext
) -> None:
    certificate, key = (Path(shutil.copy(file, tmp_path)) for file in files)
    issued = authority.issue_cert("127.0.0.1")

    def served() -> str:
        return ssl.get_server_certificate(("127.0.0.1", httpx2.URL(server.url).port or 0))

    with live_server(models_dir, tmp_path, *flags((certificate, key)), verify=trusting) as server:
        old, new = served(), issued.cert_chain_pems[0].bytes().decode()
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        wait_until(lambda: "the certificate stays as it was" in server.log.read_text())
        assert served() == old
        issued.private_key_pem.write_to_path(str(key))
        wait_until(lambda: "new connections have the certificate" in server.log.read_text())
        assert served().split() == new.split()
        assert httpx2.get(f"{server.url}/health/live", verify=trusting).is_success


HSTS = "strict-transport-security"


def test_https_answers_carry_strict_transport_security(
    server: LiveServer, client: httpx2.Client, trusting: ssl.SSLContext
) -> None:
    for path, status in [("/health/live", 200), ("/docs", 200), ("/x", 404), ("/adapt", 405)]:
        answer = client.get(path)
        assert answer.status_code == status
        assert answer.headers.get_list(HSTS) == ["max-age=31536000"]
    with trusting.wrap_socket(connect(server), server_hostname="127.0.0.1") as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        received = connection.makefile("rb").read().lower()
    assert received.startswith(b"http/1.1 400")
    assert received.count(b"strict-transport-security: max-age=31536000\r\n") == 1


def test_http_answers_carry_no_strict_transport_security(models_dir: Path, tmp_path: Path) -> None:
    """Not even to a proxy, which may serve http as well."""
    with live_server(models_dir, tmp_path) as server:
        forwarded = {"X-Forwarded-Proto": "https"}
        assert HSTS not in httpx2.get(f"{server.url}/models", headers=forwarded).headers


def change_key(files: Files, folder: Path) -> Files:
    other = folder / "other.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(str(other))
    return files[0], other


def with_passphrase(files: Files, folder: Path) -> Files:
    from cryptography.hazmat.primitives import serialization as s  # noqa: PLC0415

    key = s.load_pem_private_key(files[1].read_bytes(), None)
    locked = folder / "locked.pem"
    locked.write_bytes(
        key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"passphrase"))
    )
    return files[0], locked


def no_pem(files: Files, folder: Path) -> Files:
    (folder / "text.pem").write_text("no certificate")
    return folder / "text.pem", files[1]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda files, folder: (folder / "absent", files[1]), "absent: cannot be read: No such"),
        (lambda files, folder: (files[0], folder), "cannot be read: Is a directory"),
        (change_key, "cannot be used (KEY_VALUES_MISMATCH). Give PEM files"),
        (with_passphrase, "without a passphrase"),
        (no_pem, "cannot be used"),
    ],
)
def test_unusable_certificates_and_keys_are_refused(
    change: Callable[[Files, Path], Files],
    expected: str,
    files: Files,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(flags(change(files, tmp_path))) == 2
    error = capsys.readouterr().err
    assert error.startswith("comln-serve: ")
    assert expected in error
    assert str(tmp_path) in error


@pytest.mark.parametrize(("given", "absent"), [("certificate", "key"), ("key", "certificate")])
def test_a_certificate_needs_a_key_and_a_key_a_certificate(
    given: str, absent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--tls-{given}", "x.pem"]) == 2
    assert f"tls_{given} needs tls_{absent}: give both" in capsys.readouterr().err
