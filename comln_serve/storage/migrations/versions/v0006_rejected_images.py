"""Idempotency keys know the images that their request went on without."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column; null in rows of before, which no partial request made."""
    op.add_column("idempotency_keys", sa.Column("rejected", sa.Text))
