"""`comln-serve keys` makes, lists and revokes keys, in the database that flags, environment and file name."""

import json
import re
import subprocess
import sys
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from comln_serve.cli import main
from comln_serve.configuration.sources import read_configuration
from comln_serve.errors import StartupError
from comln_serve.security.keys import Scope, is_right, parse_key
from comln_serve.storage import Store
from tests.support.commands import Command
from tests.support.keyed import keyed, keyed_settings

__all__ = ["keyed", "keyed_settings"]  # fixtures

TEXT = re.compile(r"comln_[0-9a-f]{16}_[0-9a-f]{64}")


def test_commands(database_url: str, comln_serve: Command) -> None:
    at = ["--database-url", database_url]
    scopes = ["--scope", "adapt", "--scope", "predict"]
    more = ["--name", "line 3", "--requests-per-minute", "600", "--expires-in-days", "90"]
    text = comln_serve("keys", "create", *at, "--tenant", "acme", *scopes, *more).strip()
    assert TEXT.fullmatch(text)
    key_id, secret = parse_key(text) or ("", "")
    assert key_id in comln_serve.told
    assert secret not in comln_serve.told
    with closing(Store(database_url)) as store:
        key = store.keys.find(key_id)
    assert key is not None
    assert is_right(secret, key.secret_sha256)
    assert (key.tenant, key.name, key.requests_per_minute) == ("acme", "line 3", 600)
    assert key.scopes == {Scope.ADAPT, Scope.PREDICT}
    assert key.expires_at == key.created_at + timedelta(days=90)

    comln_serve("keys", "create", *at, "--tenant", "", "--scope", "admin")
    comln_serve("keys", "revoke", *at, key_id)
    listed = comln_serve("keys", "list", *at)
    heads, first, second = listed.splitlines()
    assert heads.split()[:3] == ["id", "tenant", "scopes"]
    assert first.split()[:4] == [key_id, "acme", "adapt,predict", "600"]
    assert first.endswith("revoked  line 3")
    assert second.split()[1:4] == ["''", "admin", "-"]
    assert second.endswith("never       never      valid")
    assert secret not in listed

    listed = comln_serve("keys", "list", *at, "--json")
    one, other = json.loads(listed)
    assert one == {
        "id": key_id,
        "tenant": "acme",
        "scopes": ["adapt", "predict"],
        "requests_per_minute": 600,
        "created_at": key.created_at.isoformat(),
        "expires_at": (key.created_at + timedelta(days=90)).isoformat(),
        "revoked_at": one["revoked_at"],
        "used_at": None,
        "state": "revoked",
        "name": "line 3",
    }
    assert datetime.fromisoformat(one["revoked_at"]) >= key.created_at
    assert [other[name] for name in ("tenant", "expires_at", "revoked_at", "name")] == ["", None, None, None]
    assert secret not in listed


def test_the_servers_help_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "comln-serve keys --help" in words
    assert "comln-serve --version" in words


def test_the_password_of_the_database_is_not_shown(comln_serve: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_url: str) -> Store:
        raise StartupError("cannot use it")

    monkeypatch.setattr("comln_serve.key_commands.Store", refused)
    url = "postgresql://me:secret@host/db?password=secret"
    printed = comln_serve.refused("keys", "list", "--database-url", url)
    assert "Database: postgresql://me:***@host/db?password=*** (flag --database-url)." in printed
    assert "secret" not in printed


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["make"],
        ["create"],
        ["create", "--tenant", "a"],
        ["create", "--scope", "adapt"],
        ["create", "--tenant", "a b", "--scope", "adapt"],
        ["create", "--tenant", "a", "--scope", "root"],
        ["create", "--tenant", "a", "--scope", "adapt", "--name", "a\nb"],
        ["create", "--tenant", "a", "--scope", "adapt", "--requests-per-minute", "0"],
        ["create", "--tenant", "a", "--scope", "adapt", "--requests-per-minute", "9" * 30],
        ["create", "--tenant", "a", "--scope", "adapt", "--expires-in-days", "1.5"],
        ["revoke"],
    ],
    ids=" ".join,
)
def test_wrong_arguments(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.db"
    monkeypatch.setenv("COMLN_DATABASE_URL", f"sqlite:///{path}")
    with pytest.raises(SystemExit) as caught:
        main(["keys", *arguments])
    assert caught.value.code == 2
    assert not path.exists()


def test_an_unknown_scope_is_answered_with_the_allowed_ones(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["keys", "create", "--database-url", database_url, "--tenant", "a", "--scope", "root"])
    assert "argument --scope: 'root' is no scope: predict, adapt, admin are allowed" in capsys.readouterr().err


@pytest.mark.process
def test_a_list_that_nobody_reads_to_its_end(tmp_path: Path) -> None:
    """As with `| head`: the command ends without a word."""
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    Store(url).close()
    with subprocess.Popen(
        [sys.executable, "-m", "comln_serve.cli", "keys", "list", "--database-url", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        said = command.stderr.read()
    assert (command.returncode, said.count("\n")) == (0, 1), said  # the line that names the database


def test_the_database_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comln_serve: Command) -> None:
    path = tmp_path / "keys.db"
    monkeypatch.setenv("COMLN_DATABASE_URL", f"sqlite:///{path}")
    Store(f"sqlite:///{path}").close()
    for key in ("absent", "comln_absent_secret"):
        comln_serve("keys", "revoke", key, status=1)
        assert comln_serve.told.startswith(f"Database: {path} (environment COMLN_DATABASE_URL).\n")
        assert "no key 'absent'" in comln_serve.told
        assert "secret" not in comln_serve.told
    monkeypatch.setenv("COMLN_DATABASE_URL", "mysql://me:secret@host/db")
    assert "secret" not in comln_serve.refused("keys", "list")


CREATE = ["create", "--tenant", "acme", "--scope", "predict"]


@pytest.mark.parametrize("where", ["before", "after", "environment"])
def test_the_database_of_the_configuration_file(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comln_serve: Command
) -> None:
    """That of the server which is started with the same."""
    monkeypatch.chdir(tmp_path)
    file, path = tmp_path / "comln.toml", tmp_path / "of the server.db"
    file.write_text(f"database_url = 'sqlite:///{path}'\nport = 9000")
    config = ["--config", str(file)]
    if where == "environment":
        monkeypatch.setenv("COMLN_CONFIG", str(file))
        config = []

    def keys(command: str, *more: str) -> str:
        words = [*config, command, *more] if where == "before" else [command, *more, *config]
        return comln_serve("keys", *words)

    made = keys(*CREATE)
    first = comln_serve.told.splitlines()[0]
    assert first.startswith(f"Database: {path} (file {file}); it is not there yet and will be made")
    assert [found.name for found in tmp_path.glob("*.db")] == [path.name]
    of_server = read_configuration(["--config", str(file)]).database_url
    with closing(Store(of_server)) as store:
        (key,) = store.keys.all()
    assert key.id in made

    assert key.id in keys("list")
    assert comln_serve.told == f"Database: {path} (file {file}).\n"
    keys("revoke", f"comln_{key.id}_{'0' * 64}")


def test_the_flag_wins_over_the_environment_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comln_serve: Command
) -> None:
    urls = {name: f"sqlite:///{tmp_path / name}.db" for name in ("file", "environment", "flag")}
    for url in urls.values():
        Store(url).close()
    file = tmp_path / "comln.toml"
    file.write_text(f"database_url = '{urls['file']}'")
    list_ = ["keys", "--config", str(file), "list"]

    def used(arguments: list[str]) -> str:
        comln_serve(*arguments)
        return comln_serve.told

    assert used(list_) == f"Database: {tmp_path / 'file'}.db (file {file}).\n"
    monkeypatch.setenv("COMLN_DATABASE_URL", urls["environment"])
    assert "environment.db (environment COMLN_DATABASE_URL)." in used(list_)
    for flagged in (
        [*list_, "--database-url", urls["flag"]],
        ["keys", "--database-url", urls["flag"], *list_[1:]],
        ["keys", "--database-url", urls["file"], *list_[1:], "--database-url", urls["flag"]],
    ):
        assert "flag.db (flag --database-url)." in used(flagged)


@pytest.mark.parametrize("command", [["list"], ["revoke", "absent"]])
@pytest.mark.parametrize(
    ("flags", "origin"), [([], "default, in the working folder"), (["--database-url", "URL"], "flag --database-url")]
)
def test_no_database_is_made_to_look_into(
    command: list[str],
    flags: list[str],
    origin: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    comln_serve: Command,
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "sqlite:///comln-serve.db"
    assert comln_serve("keys", *command, *(flag.replace("URL", url) for flag in flags), status=2) == ""
    said = f"comln-serve: there is no database {tmp_path / 'comln-serve.db'} ({origin}). Give "
    assert comln_serve.told.startswith(said)
    assert not any(tmp_path.iterdir())


def test_a_database_that_cannot_be_looked_for(tmp_path: Path, comln_serve: Command) -> None:
    """What is wrong with it is said, not that there is none."""
    list_ = ["keys", "list", "--database-url"]
    assert "unable to open database file" in comln_serve.refused(*list_, f"sqlite:///{tmp_path / ('x' * 300)}")
    (tmp_path / "file").touch()
    assert "there is no database" in comln_serve.refused(*list_, f"sqlite:///{tmp_path}/file/x.db")


def test_keys_refuse_what_the_server_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comln_serve: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "comln.toml"
    file.write_text("database = 'x'")
    said = comln_serve.refused("keys", *CREATE, "--config", file)
    assert f"{file}, database: there is no such setting; the nearest are database_url" in said
    monkeypatch.setenv("COMLN_DATABASE", "x")
    assert "COMLN_DATABASE: there is no such variable" in comln_serve.refused("keys", *CREATE)
    assert list(tmp_path.iterdir()) == [file]
