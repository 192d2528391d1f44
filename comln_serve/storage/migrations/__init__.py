"""Alembic's revisions of the schema; `comln_serve.storage.schema` runs them at start."""
