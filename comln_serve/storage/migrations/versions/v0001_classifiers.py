"""Classifiers with versions, their support sets, and idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_Sequence = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Time = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "classifiers",
        sa.Column("sequence", _Sequence, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("name", sa.Text),
        sa.Column("version", sa.Integer),
        sa.Column("promotion", sa.Integer, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("embedder_sha256", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("examples", sa.Text, nullable=False),
        sa.Column("horizon", sa.Double, nullable=False),
        sa.Column("horizon_given", sa.Boolean, nullable=False),
        sa.Column("support_loss", sa.Double, nullable=False),
        sa.Column("support_accuracy", sa.Double, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("report", sa.Text),
        sa.Column("created_at", _Time, nullable=False),
        sa.Column("expires_at", _Time),
        sa.Column("weights", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("tenant", "name", "version", name="one_of_each_version"),
        sqlite_autoincrement=True,
    )
    for index, columns in {
        "classifiers_by_promotion": ["tenant", "name", "promotion", "version"],
        "classifiers_by_expiry": ["tenant", "expires_at"],
    }.items():
        op.create_index(index, "classifiers", columns)
    op.create_index("classifiers_by_position", "classifiers", ["tenant", "position"], unique=True)
    op.create_table(
        "supports",
        sa.Column(
            "classifier",
            _Sequence,
            sa.ForeignKey("classifiers.sequence", ondelete="CASCADE"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("numbers", sa.Text, nullable=False),
        sa.Column("next_number", sa.Integer, nullable=False),
        sa.Column("embeddings", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "names",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("last_version", sa.Integer, nullable=False),
        sa.Column("last_promotion", sa.Integer, nullable=False),
    )
    op.create_table(
        "tenants",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("last_position", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("classifier", sa.Text, nullable=False),
        sa.Column("expires_at", _Time, nullable=False),
    )
    op.create_index("idempotency_keys_by_expiry", "idempotency_keys", ["expires_at"])
