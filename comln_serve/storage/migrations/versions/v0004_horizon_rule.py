"""A classifier's horizon is given, learned or auto; before, it was given or not."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_classifiers = sa.table("classifiers", sa.column("horizon_given", sa.Boolean), sa.column("horizon_rule", sa.Text))


def upgrade() -> None:
    """Replace the column `horizon_given` by `horizon_rule`."""
    op.add_column("classifiers", sa.Column("horizon_rule", sa.Text, nullable=False, server_default="learned"))
    op.execute(_classifiers.update().where(_classifiers.c.horizon_given.is_(True)).values(horizon_rule="given"))
    op.drop_column("classifiers", "horizon_given")
