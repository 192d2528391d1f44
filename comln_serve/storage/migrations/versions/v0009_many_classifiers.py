"""Counts of each tenant's classifiers, indices for lists of one name or one model, embeddings of 16 bits."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_tenants = sa.table("tenants", sa.column("tenant", sa.Text), sa.column("stored", sa.BigInteger))
_classifiers = sa.table("classifiers", sa.column("tenant", sa.Text))


def upgrade() -> None:
    """Make the indices, and count what there is. Stored embeddings stay float32."""
    op.create_index("classifiers_by_name", "classifiers", ["tenant", "name", "position"])
    op.create_index("classifiers_by_model", "classifiers", ["tenant", "model", "position"])
    op.add_column("tenants", sa.Column("stored", sa.BigInteger, nullable=False, server_default="0"))
    of_tenant = sa.select(sa.func.count()).where(_classifiers.c.tenant == _tenants.c.tenant).scalar_subquery()
    op.execute(_tenants.update().values(stored=of_tenant))
    op.add_column("supports", sa.Column("scales", sa.LargeBinary))
