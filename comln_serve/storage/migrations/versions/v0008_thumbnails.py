"""Thumbnails of classes, which servers keep where their operator allows it."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Make the table. Older classifiers have none: their images are not kept."""
    op.create_table(
        "thumbnails",
        sa.Column(
            "classifier",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            sa.ForeignKey("classifiers.sequence", ondelete="CASCADE"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("jpeg", sa.LargeBinary, nullable=False),
    )
    op.create_index("thumbnails_by_position", "thumbnails", ["classifier", "position", "number"])
