"""The held-out accuracy of each classifier, for lists, which read no reports."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_classifiers = sa.table("classifiers", *map(sa.column, ("sequence", "report", "held_out_accuracy", "held_out_judged")))

_AT_ONCE = 50  # rows in memory: a report may have megabytes


def upgrade() -> None:
    """Add the columns, and fill them from the reports there are."""
    op.add_column("classifiers", sa.Column("held_out_accuracy", sa.Double))
    op.add_column("classifiers", sa.Column("held_out_judged", sa.Integer))
    connection = op.get_bind()
    query = (
        sa.select(_classifiers.c.sequence, _classifiers.c.report)
        .where(_classifiers.c.report.is_not(None))
        .order_by(_classifiers.c.sequence)
        .limit(_AT_ONCE)
    )
    last = 0
    while rows := connection.execute(query.where(_classifiers.c.sequence > last)).all():
        # Not by the databases' JSON functions: PostgreSQL's read no text that holds NUL, as labels may.
        reports = ((sequence, json.loads(report)["held_out"]) for sequence, report in rows)
        values = [
            {"of": sequence, "accuracy": held_out["accuracy"], "judged": held_out["judged"]}
            for sequence, held_out in reports
            if held_out is not None
        ]
        if values:
            connection.execute(
                sa.update(_classifiers)
                .where(_classifiers.c.sequence == sa.bindparam("of"))
                .values(held_out_accuracy=sa.bindparam("accuracy"), held_out_judged=sa.bindparam("judged")),
                values,
            )
        last = rows[-1].sequence
