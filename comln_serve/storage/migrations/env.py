"""What Alembic runs: on the connection, and in the transaction, that it is handed."""

from alembic import context

from comln_serve.storage.schema import VERSION_TABLE
from comln_serve.storage.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
