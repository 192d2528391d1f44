"""Alembic's revisions of the schema, which `comln_serve.storage.schema` runs at start."""
