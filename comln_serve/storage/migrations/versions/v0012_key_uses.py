"""When each API key was last used."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column. When the keys there are were used is not known: null."""
    op.add_column("api_keys", sa.Column("used_at", sa.DateTime(timezone=True)))
