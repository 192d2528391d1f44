"""compose.yaml: consistent with the image and the server's settings. It has not been run under Docker."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from comln_serve.api.routes.operations import router
from comln_serve.configuration.settings import Settings
from comln_serve.server.serve import _CLOSE_SECONDS
from comln_serve.storage.database import parse_url
from tests.deployment.test_docker import PARENTS, environment_of, steps_of
from tests.support.documents import document
from tests.support.paths import REPOSITORY
from tests.support.variables import VARIABLES, settings_of

COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVER, DATABASE = SERVICES["server"], SERVICES["database"]
DOCUMENT = document("deployment.md")
SECTION = DOCUMENT.partition("\n## Compose\n")[2].partition("\n## ")[0]


def settings() -> Settings:
    """Those of the server: the image's variables, and what the file sets."""
    return settings_of({**environment_of(SERVER["build"]["target"]), **SERVER["environment"]})


def in_memory(service: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The folders of a service that are in memory, with their options."""
    found: dict[str, dict[str, str]] = {}
    for text in service["tmpfs"]:
        folder, _, options = text.partition(":")
        found[folder] = dict(option.split("=") for option in options.split(","))
    return found


def seconds(text: str) -> int:
    return int(re.fullmatch(r"(\d+)s", text)[1])  # type: ignore[index]


def test_the_variables_are_settings() -> None:
    assert set(SERVER["environment"]) <= VARIABLES
    assert settings().require_keys
    url = parse_url(settings().database_url)
    assert url.host in SERVICES
    assert (url.username, url.database) == (
        DATABASE["environment"]["POSTGRES_USER"],
        DATABASE["environment"]["POSTGRES_DB"],
    )


def test_the_image_is_the_one_of_the_dockerfile() -> None:
    target = SERVER["build"]["target"]
    assert target in PARENTS
    assert f"--target {target}  -t {SERVER['image']}" in DOCUMENT
    assert (REPOSITORY / SERVER["build"]["context"] / "Dockerfile").exists()
    assert "postgres:17" in DATABASE["image"], "of 18 the folder of the data is another"


def test_only_this_machine_reaches_the_port_of_the_image() -> None:
    (published,) = SERVER["ports"]
    address, _, inside = published.split(":")
    assert address == "127.0.0.1"
    assert steps_of("cpu", "EXPOSE") == [inside] == [str(settings().port)]
    assert "ports" not in DATABASE
    assert DATABASE["networks"] == ["inside"]
    assert COMPOSE["networks"]["inside"] == {"internal": True}


def test_the_health_check_is_the_images() -> None:
    (check,) = steps_of("cpu", "HEALTHCHECK")
    options, _, command = check.partition(" CMD ")
    own = SERVER["healthcheck"]
    assert own["test"] == ["CMD", *json.loads(command)]
    names = {name: own[name.replace("-", "_")] for name in ("interval", "timeout", "start-period")}
    assert options.split() == [f"--{name}={value}" for name, value in names.items()]
    routes = {getattr(route, "path", "") for route in router.routes}
    assert any(f"'{route}'" in command for route in routes)
    assert SERVER["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert "--username=comln" in DATABASE["healthcheck"]["test"]


def test_nothing_runs_as_root_or_writes_to_an_image() -> None:
    for service in SERVICES.values():
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
        assert "cap_add" not in service
    assert steps_of("cpu", "USER") == [SERVER["user"]]
    folders = in_memory(SERVER)
    assert environment_of("cpu")["NUMBA_CACHE_DIR"].startswith("/tmp/")
    (volume,) = steps_of("cpu", "VOLUME")
    assert set(folders) == {"/tmp", volume}, "else the image's volume stays when the container goes"
    assert f"{folders[volume]['uid']}:{folders[volume]['gid']}" == SERVER["user"]
    (data,) = DATABASE["volumes"]
    assert data.partition(":")[0] in COMPOSE["volumes"]


def test_the_password_is_in_a_file_only() -> None:
    ((name, secret),) = COMPOSE["secrets"].items()
    for service in SERVICES.values():
        assert service["secrets"] == [name]
    inside = f"/run/secrets/{name}"
    url = parse_url(settings().database_url)
    assert url.password is None
    assert url.query == {"password_file": inside}
    assert DATABASE["environment"]["POSTGRES_PASSWORD_FILE"] == inside
    assert not any(re.fullmatch(r".*(PASSWORD|KEY|TOKEN)", variable) for variable in DATABASE["environment"])
    folder = Path(secret["file"]).parts[0]
    assert f"/{folder}/" in (REPOSITORY / ".gitignore").read_text().splitlines()
    # What the file and the document tell to do makes the file that is mounted, readable by the users of both images.
    for text in ((REPOSITORY / "compose.yaml").read_text(), SECTION):
        assert f"> {secret['file']} && chmod 0444 {secret['file']}".replace("./", "") in text
        assert f"mkdir -m 0700 {folder}" in text


def test_there_is_time_to_drain() -> None:
    most = settings().drain_delay_seconds + settings().drain_seconds + _CLOSE_SECONDS
    assert seconds(SERVER["stop_grace_period"]) > most


def test_the_memory_is_that_of_the_manifests() -> None:
    (limit,) = re.findall(r"limit is (\d+) GiB, \d+ GiB with CUDA", DOCUMENT)
    assert SERVER["mem_limit"] == f"{limit}g"


@pytest.mark.parametrize("text", ["docker compose up", "docker compose exec server comln-serve keys create"])
def test_the_document_says_how_to_use_it(text: str) -> None:
    assert text in SECTION


def test_the_document_says_what_was_not_run() -> None:
    assert "Never run under Docker" in DOCUMENT
