"""`comln-serve keys`: make, list and revoke API keys in the servers' database."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from comln_serve.configuration.settings import MOST_PER_MINUTE, without_password
from comln_serve.configuration.sources import Flags
from comln_serve.errors import StartupError
from comln_serve.security.keys import TENANT_PATTERN, ApiKey, Scope, make_key
from comln_serve.storage import Store, sqlite_file, utc_now

_MOST_DAYS = 3660
_LONGEST_NAME = 64


def keys_command(arguments: Sequence[str]) -> int:
    """Run `comln-serve keys ...`. Returns the exit status (1: there is no such key).

    Raises:
        StartupError, ServiceError: the configuration or the database cannot be used.
        SystemExit: the arguments are wrong.
    """
    options = _parser().parse_args(arguments)
    url = _database_url(options)
    with closing(Store(url)) as store:
        return int(options.run(store, options))


def _database_url(options: argparse.Namespace) -> str:
    """The URL of the database that a server with this configuration uses. Prints it and its origin.

    Raises:
        StartupError: the configuration cannot be used, or `list` or `revoke` would make a database file, whose empty
            list would mislead.
    """
    configuration = Flags(
        **{name: value for name, value in vars(options).items() if name in ("config", "database_url")}
    )
    url = configuration.database_url
    origin = configuration.origins.get("database_url", "default, in the working folder")
    file = sqlite_file(url)
    absent = file is not None and _is_absent(file)
    if absent and not options.makes_database:
        raise StartupError(
            f"there is no database {file} ({origin}). Give the --config, --database-url or "
            "variables of the server, and its working folder if the path is relative; a server "
            "makes its database when it starts, and `keys create` does"
        )
    made = "; it is not there yet and will be made; start the server with the same" if absent else ""
    print(f"Database: {file or without_password(url)} ({origin}){made}.", file=sys.stderr)
    return url


def _is_absent(file: Path) -> bool:
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # opening the file will report the error
        return False
    return False


def _parser() -> argparse.ArgumentParser:
    # Accepted before and after the command. A default would overwrite a value given before it.
    flags = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    flags.add_argument("--config", metavar="FILE", help="configuration file of the servers")
    flags.add_argument(
        "--database-url", metavar="URL", help="of the servers; default: as theirs, from COMLN_DATABASE_URL or file"
    )
    parser = argparse.ArgumentParser("comln-serve keys", description=__doc__, parents=[flags])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[Store, argparse.Namespace], int], help_: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help_, description=help_, parents=[flags])
        added.set_defaults(run=run, makes_database=run is _create)
        return added

    create = command("create", _create, "Make a key and print it, this once only.")
    create.add_argument(
        "--tenant",
        required=True,
        type=_tenant,
        help="whose classifiers the key can use; '' for those made without keys",
    )
    create.add_argument(
        "--scope",
        required=True,
        action="append",
        type=_scope,
        choices=list(Scope),
        dest="scopes",
        help="what the key may be used for; may be repeated",
    )
    create.add_argument("--name", type=_name, help="shown in lists")
    create.add_argument(
        "--requests-per-minute",
        type=_up_to(MOST_PER_MINUTE),
        metavar="N",
        help="limit on each server; default: the server's setting",
    )
    create.add_argument("--expires-in-days", type=_up_to(_MOST_DAYS), metavar="N", help="default: never")
    list_ = command("list", _list, "List all keys, oldest first.")
    list_.add_argument("--json", action="store_true", dest="as_json", help="print JSON, for programs")
    revoke = command("revoke", _revoke, "Revoke a key, for good, within a second.")
    revoke.add_argument("id", metavar="ID", type=_key_id, help="the first part of the key, after comln_; or all of it")
    return parser


def _create(store: Store, options: argparse.Namespace) -> int:
    now, days = utc_now(), options.expires_in_days
    key, text = make_key(
        options.tenant,
        options.scopes,
        now=now,
        name=options.name,
        requests_per_minute=options.requests_per_minute,
        expires_at=None if days is None else now + timedelta(days=days),
    )
    store.keys.add(key)
    print(text)
    print(f"Key {key.id} of tenant {key.tenant!r}. It is not shown again.", file=sys.stderr)
    return 0


def _list(store: Store, options: argparse.Namespace) -> int:
    now, keys = utc_now(), store.keys.all()
    text = (
        json.dumps([_facts(key, now) for key in keys], ensure_ascii=False, indent=2)
        if options.as_json
        else _table(keys, now)
    )
    with suppress(BrokenPipeError):  # as of `| head`
        print(text, flush=True)
    return 0


def _table(keys: Sequence[ApiKey], now: datetime) -> str:
    heads = ("id", "tenant", "scopes", "per minute", "created", "expires", "last used", "state", "name")
    rows = [heads, *(_row(key, now) for key in keys)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(key: ApiKey, now: datetime) -> tuple[str, ...]:
    return (
        key.id,
        key.tenant or "''",
        ",".join(sorted(key.scopes)),
        str(key.requests_per_minute or "-"),
        f"{key.created_at:%Y-%m-%d}",
        f"{key.expires_at:%Y-%m-%d}" if key.expires_at else "never",
        f"{key.used_at:%Y-%m-%d}" if key.used_at else "never",
        _state(key, now),
        key.name or "",
    )


def _facts(key: ApiKey, now: datetime) -> dict[str, Any]:
    """What is listed of a key, as JSON values."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "requests_per_minute": key.requests_per_minute,
        "created_at": key.created_at.isoformat(),
        "expires_at": key.expires_at and key.expires_at.isoformat(),
        "revoked_at": key.revoked_at and key.revoked_at.isoformat(),
        "used_at": key.used_at and key.used_at.isoformat(),
        "state": _state(key, now),
        "name": key.name,
    }


def _state(key: ApiKey, now: datetime) -> str:
    return "revoked" if key.revoked_at else "valid" if key.is_valid(now) else "expired"


def _revoke(store: Store, options: argparse.Namespace) -> int:
    if not store.keys.revoke(options.id):
        print(
            f"comln-serve: there is no key {options.id!r} in {store.description}; comln-serve keys list shows the ids.",
            file=sys.stderr,
        )
        return 1
    print(f"Key {options.id} is revoked.", file=sys.stderr)
    return 0


def _key_id(text: str) -> str:
    """The id of a key that may be given whole, so that no message shows its secret."""
    return text.removeprefix("comln_").partition("_")[0]


def _tenant(text: str) -> str:
    if not re.fullmatch(TENANT_PATTERN, text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no tenant: 1 to 64 letters, digits, '.', '_' or '-', starting with a "
            "letter or digit; or empty, for what was made without keys"
        )
    return text


def _scope(text: str) -> Scope:
    if text not in list(Scope):
        raise argparse.ArgumentTypeError(f"{text!r} is no scope: {', '.join(Scope)} are allowed")
    return Scope(text)


def _name(text: str) -> str:
    if not (text.isprintable() and 1 <= len(text) <= _LONGEST_NAME):
        raise argparse.ArgumentTypeError(f"{text!r} is no name: 1 to {_LONGEST_NAME} printable characters")
    return text


def _up_to(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
        if not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is not within 1 to {most}")
        return int(text)

    return number
