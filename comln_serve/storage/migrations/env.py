"""Alembic's entry point: runs the migrations in the transaction of the given connection."""

from alembic import context

from comln_serve.storage.schema import VERSION_TABLE
from comln_serve.storage.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
context.run_migrations()
