"""An index to find the expired classifiers of all tenants."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the index."""
    op.create_index("classifiers_by_expiry_of_all", "classifiers", ["expires_at"])
