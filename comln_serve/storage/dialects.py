"""INSERT ... ON CONFLICT: the same in SQLite and PostgreSQL, but two classes in SQLAlchemy."""

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def upsert(connection: Connection, table: Table) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT into `table` that supports ON CONFLICT."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)
