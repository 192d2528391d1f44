"""Perceptual hashes of the examples, by which near-duplicates are recognised."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column. Older examples have no hashes: their images are not kept."""
    op.add_column("supports", sa.Column("hashes", sa.Text))
