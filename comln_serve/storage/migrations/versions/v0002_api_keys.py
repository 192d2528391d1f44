"""API keys."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_Time = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("secret_sha256", sa.Text, nullable=False),
        sa.Column("requests_per_minute", sa.Integer),
        sa.Column("created_at", _Time, nullable=False),
        sa.Column("expires_at", _Time),
        sa.Column("revoked_at", _Time),
    )
