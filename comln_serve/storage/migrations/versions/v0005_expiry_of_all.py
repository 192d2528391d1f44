"""An index to find what has expired, of whichever tenant."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make it."""
    op.create_index("classifiers_by_expiry_of_all", "classifiers", ["expires_at"])
