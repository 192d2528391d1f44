"""Flags, environment variables and a file: which wins, what is refused, what is shown."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from comln_serve.configuration.settings import Settings, without_password
from comln_serve.configuration.sources import read_configuration
from comln_serve.errors import StartupError
from comln_serve.server.serve import warn_of_settings
from tests.support import http
from tests.support.commands import Command
from tests.support.live import live_server
from tests.support.programs import python


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("COMLN_"):
            monkeypatch.delenv(name)


def write(folder: Path, text: str) -> str:
    path = folder / "comln.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", ["--config", "COMLN_CONFIG"])
def test_a_flag_wins_over_the_environment_over_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "max_images = 1\nport = 11\ndrain_seconds = 21\nlog_level = 'debug'")
    monkeypatch.setenv("COMLN_PORT", "12")
    monkeypatch.setenv("COMLN_DRAIN_SECONDS", "22")
    flags = ["--drain-seconds", "23"]
    if name == "COMLN_CONFIG":
        monkeypatch.setenv(name, file)
    else:
        flags += [name, file]
    found = read_configuration(flags)
    assert (found.max_images, found.port, found.drain_seconds) == (1, 12, 23)
    assert (found.log_level, found.max_batch_size) == ("debug", 64)
    assert found.origins == {
        "max_images": f"file {file}",
        "log_level": f"file {file}",
        "port": "environment COMLN_PORT",
        "drain_seconds": "flag --drain-seconds",
        "config": "environment COMLN_CONFIG" if name == "COMLN_CONFIG" else "flag --config",
    }


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Windows PowerShell and older editors write one."""
    assert read_configuration(["--config", write(tmp_path, "\ufeffport = 11")]).port == 11


def test_the_file_of_the_flag_wins_over_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMLN_CONFIG", str(tmp_path / "absent.toml"))
    found = read_configuration(["--config", write(tmp_path, "port = 11")])
    assert found.port == 11


def test_every_setting_can_be_in_the_file_as_it_is_shown(tmp_path: Path) -> None:
    """What --print-config shows is a file that says the same."""
    flags = "--default-model x --decode-threads 3 --inference-threads 2 --models-dir some/where"
    first = read_configuration([*flags.split(), "--database-url", "sqlite:///ä\"b'\\.db"])
    second = read_configuration(["--config", write(tmp_path, first.text())])
    assert all(getattr(second, name) == getattr(first, name) for name in Settings.model_fields)
    optional = {name for name in Settings.model_fields if getattr(first, name) is None}
    assert set(second.origins) == {"config", *Settings.model_fields} - optional


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prot = 1", ", prot: there is no such setting; the nearest are port"),
        ("x = 1", ", x: there is no such setting; allowed are models_dir, "),
        ("max-images = 1", ", max-images: there is no such setting"),
        ("config = 'x'", ", config: there is no such setting"),
        ("[server]\nport = 1", ", server: there is no such setting"),
        ("port = 70000", ", port: Input should be less than or equal to 65535, got 70000"),
        ("port = 'abc'", ", port: Input should be a valid integer"),
        ("host = 1979-05-27", ", host: Input should be a valid string, got datetime.date(1979, 5, 27)"),
        ("max_images = 1979-05-27", ", max_images: Input should be a valid integer"),
        ("models_dir = ['a']", ", models_dir: Input is not a valid path"),
        ("PORT = 1", ", PORT: there is no such setting"),
        ("require_keys = 'yes'", ", require_keys: true or false is allowed, got 'yes'"),
        ("port = true", ", port: a string or a number is allowed, got True"),
        ("cors_origins = [1]", ", cors_origins: Input should be a valid string, got [1]"),
        ("image_formats = ['JPG']", ", image_formats: JPG: no such format; list one or more of JPEG, "),
        ("log_level = 'loud'", ", log_level: Input should be 'debug', 'info', 'warning' or 'error', got 'loud'"),
        ("max_queue_seconds = nan", ", max_queue_seconds: Input should be a finite number, got nan"),
        ("provider = 'gpu'", ", provider: Input should be 'auto', 'cuda', 'cpu' or 'openvino', got 'gpu'"),
        ("max_images = 9999", "max_images (9999) must not exceed max_pending_images (2048)"),
        ("port 1", "is not TOML: "),
        ("port = 1\nport = 2", "is not TOML: "),
    ],
)
def test_a_wrong_file_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(StartupError) as caught:
        read_configuration(["--config", file])
    assert expected in str(caught.value)
    assert "must not exceed" in expected or str(caught.value).removeprefix("file ").startswith(file)


def test_a_list_of_the_file_is_what_commas_separate(tmp_path: Path) -> None:
    lists = "image_formats = ['PNG', 'JPEG']\ncors_origins = ['https://a.example', 'https://b.example']"
    found = read_configuration(["--config", write(tmp_path, f"{lists}\nallowed_hosts = []")])
    assert found.accepted_formats == ("JPEG", "PNG")
    assert found.cors_origins == "https://a.example,https://b.example"
    assert found.host_names == ()


@pytest.mark.parametrize(
    ("settings", "workers", "said"),
    [
        ({}, 2, []),
        ({}, 99, ["99 workers on 2 usable CPUs: "]),
        ({"embedding_process": "on"}, 2, []),
        ({"embedding_process": "on"}, 1, ["embedding_process is on, which is for several workers"]),
        ({"max_body_bytes": 1000}, 1, ["max_image_bytes (16777216) is more than max_body_bytes (1000): "]),
    ],
)
def test_contradictions_are_logged(
    settings: dict[str, object],
    workers: int,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("comln_serve.server.serve.usable_cpus", lambda: 2)
    warn_of_settings(Settings.model_validate(settings), workers)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(said)
    assert all(map(str.startswith, messages, said))


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartupError, match=r"x\.toml: (cannot be read|is not TOML)"):
        read_configuration(["--config", str(path)])


def test_the_blame_goes_to_what_was_in_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value that is overruled does no harm; one that overrules is named as what it is."""
    file = write(tmp_path, "port = 70000")
    assert read_configuration(["--config", file, "--port", "1"]).port == 1
    monkeypatch.setenv("COMLN_PORT", "70001")
    with pytest.raises(StartupError, match=r"^environment COMLN_PORT: .*, got '70001'$"):
        read_configuration(["--config", file])


def test_several_wrong_values_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each as what its user wrote, with what was received, but never a password."""
    monkeypatch.setenv("COMLN_LOG_FORMAT", "xml")
    file = write(tmp_path, "max_images = 0\ndatabase_url = 1")
    with pytest.raises(StartupError) as caught:
        read_configuration(["--config", file, "--port", "a"])
    assert str(caught.value).split("; ") == [
        "flag --port: Input should be a valid integer, unable to parse string as an integer, got 'a'",
        f"file {file}, database_url: Input should be a valid string, got '1'",
        f"file {file}, max_images: Input should be greater than or equal to 1, got 0",
        "environment COMLN_LOG_FORMAT: Input should be 'auto', 'json' or 'text', got 'xml'",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--prot", "1"], "--prot: there is no such flag; the nearest are --port"),
        (["--port=1", "--max_images=1", "--hots"], "--max_images: .* --max-images.*; --hots: .* --host"),
        (["--database-uri=secret", "secret"], "--database-uri: there is no such flag; the nearest are --database-url"),
        (["serve"], "serve: there is no such flag; allowed are --models-dir, .*, --config, --print-config"),
    ],
)
def test_an_unknown_flag_is_refused(arguments: list[str], expected: str, comln_serve: Command) -> None:
    printed = comln_serve.refused(*arguments)
    assert re.fullmatch(f"comln-serve: {expected}\n", printed)
    assert "secret" not in printed


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("COMLN_MAX_IMAGE", "COMLN_MAX_IMAGES, "),
        ("COMLN_DATABASE_URI", "COMLN_DATABASE_URL"),
        ("COMLN_CONFIGS", "COMLN_CONFIG"),
        ("COMLN_GPU_PER_REPLICA", "COMLN_GPUS_PER_REPLICA"),
        ("comln_max_image", "COMLN_MAX_IMAGES, "),
        ("COMLN_PRINT_CONFIG", "COMLN_CONFIG"),
        ("COMLN_SERVE_SERVICE_HOSTS", ""),
        ("COMLN_HTTP_PORT", "COMLN_PORT"),
        ("comln_serve_service_host", ""),
        ("COMLN_", "COMLN_MODELS_DIR, COMLN_DEFAULT_MODEL, "),
    ],
)
def test_an_unknown_variable_is_refused(
    name: str, nearest: str, monkeypatch: pytest.MonkeyPatch, comln_serve: Command
) -> None:
    monkeypatch.setenv(name, "12345")
    assert comln_serve("--print-config", status=2) == ""
    assert comln_serve.told.startswith(f"comln-serve: {name}: there is no such variable; ")
    assert f" {nearest}" in comln_serve.told
    assert "12345" not in comln_serve.told


def test_all_unknown_variables_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMLN_PROT", "1")
    monkeypatch.setenv("COMLN_HOTS", "x")
    with pytest.raises(StartupError, match=r"^COMLN_HOTS: .*; COMLN_PROT: .* COMLN_PORT"):
        read_configuration([])


def test_variables_of_the_client_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may run in the environment of its users."""
    monkeypatch.setenv("COMLN_URL", "https://other.example.org")
    monkeypatch.setenv("COMLN_KEY", "secret")
    assert read_configuration([]).origins == {}


def test_known_variables_are_upper_or_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("comln_port", "12")
    monkeypatch.setenv("COMLN_EMBEDDING_REPLICAS", "2")  # of the Ray Serve application
    monkeypatch.setenv("COMLNX", "of others")
    found = read_configuration([])
    assert found.origins == {"port": "environment COMLN_PORT"}
    assert found.port == 12


@pytest.mark.parametrize("service", ["COMLN_SERVE", "COMLN_SERVE_2_POSTGRESQL", "COMLN"])
def test_variables_that_kubernetes_sets_for_services_pass(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the kubelet sets for a Service with two ports, one of them with a name."""
    url = "://10.0.0.11:8000"
    values = {"SERVICE_HOST": "10.0.0.11", "SERVICE_PORT": "8000", "SERVICE_PORT_GRPC_WEB": "53"}
    for protocol in ("TCP", "UDP", "SCTP"):
        port = f"PORT_8000_{protocol}"
        values |= {
            port: protocol.lower() + url,
            f"{port}_PROTO": protocol.lower(),
            f"{port}_PORT": "8000",
            f"{port}_ADDR": "10.0.0.11",
        }
    if service != "COMLN":  # of that one it is a setting of ours, and no port
        values["PORT"] = "tcp" + url
    for name, value in values.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    found = read_configuration([])
    assert found.origins == {}


def test_the_port_of_a_service_called_comln_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMLN_PORT", "tcp://10.0.0.11:8000")
    with pytest.raises(StartupError, match=r"COMLN_PORT: .*, got 'tcp://10\.0\.0\.11:8000'"):
        read_configuration([])


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql+psycopg://me:se:cr/e@t@h:5432/db", "postgresql+psycopg://me:***@h:5432/db"),
        ("postgresql://h/db?user=me&password=secret&x=1", "postgresql://h/db?user=me&password=***&x=1"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:////data/a:b@c.db", "sqlite:////data/a:b@c.db"),
        ("secret", "secret"),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert without_password(url) == shown
    assert url not in repr(Settings(database_url=url))


def test_a_password_is_never_shown(tmp_path: Path, comln_serve: Command, models_dir: Path) -> None:
    url = "nosuchdatabase://me:secret@host/db"
    shown = comln_serve("--database-url", url, "--print-config")
    assert 'database_url = "nosuchdatabase://me:***@host/db"  # flag --database-url, its' in shown
    shown += comln_serve.told + comln_serve("--config", write(tmp_path, f"database_url = '{url}'"), "--print-config")
    refused = comln_serve.refused("--models-dir", models_dir, "--provider", "cpu", "--database-url", url)
    assert refused.startswith("comln-serve: ")
    assert "secret" not in shown + refused


@pytest.mark.process
def test_the_process_shows_its_configuration(tmp_path: Path) -> None:
    """Without loading anything: the folder of models is not even there."""
    file = write(tmp_path, "models_dir = '/absent'\nmax_images = 5")
    done = python("-m", "comln_serve.cli", "--print-config", "--port", 9, COMLN_CONFIG=file)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert f'models_dir = "/absent"  # file {file}' in lines
    assert "port = 9  # flag --port" in lines
    assert "max_batch_size = 64  # default" in lines
    assert "# default_model is not set" in lines
    assert tomllib.loads(done.stdout)["max_images"] == 5


@pytest.mark.process
def test_a_server_is_run_from_a_file(models_dir: Path, tmp_path: Path) -> None:
    file = write(tmp_path, "default_model = 'tiny-prototype'\nlog_format = 'text'\nport = 1")
    with live_server(models_dir, tmp_path, "--config", file) as server:
        models = http.get(f"{server.url}/models").json()["models"]
        assert [item["name"] for item in models if item["default"]] == ["tiny-prototype"]
    assert " INFO " in server.log.read_text()


@pytest.mark.parametrize("value", ["0", "129", "1.5", "many", ""])
def test_a_wrong_number_of_workers_has_one_message(value: str) -> None:
    with pytest.raises(StartupError, match=r"^flag --workers: must be a number from 1 to 128, or auto, got '.*'$"):
        read_configuration([f"--workers={value}"])


@pytest.mark.parametrize("value", [1, 128, "auto"])
def test_a_number_of_workers(value: int | str) -> None:
    assert read_configuration([f"--workers={value}"]).workers == value
