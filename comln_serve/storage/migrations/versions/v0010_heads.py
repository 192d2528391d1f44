"""The hash of the head that each classifier was adapted by."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column. What adapted the classifiers there are is not known: null."""
    op.add_column("classifiers", sa.Column("head_sha256", sa.Text))
