"""Reports identify suspects by example number instead of position."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_classifiers = sa.table("classifiers", sa.column("sequence"), sa.column("report"))
_supports = sa.table("supports", sa.column("classifier"), sa.column("numbers"))


_AT_ONCE = 500  # rows in memory


def upgrade() -> None:
    """Rewrite the reports that have suspects."""
    connection = op.get_bind()
    query = (
        sa.select(_classifiers.c.sequence, _classifiers.c.report, _supports.c.numbers)
        .join_from(_classifiers, _supports, _classifiers.c.sequence == _supports.c.classifier)
        # Matches the key only: within strings, quotes are escaped.
        .where(_classifiers.c.report.like('%"example":%'))
        .order_by(_classifiers.c.sequence)
        .limit(_AT_ONCE)
    )
    last = 0
    while rows := connection.execute(query.where(_classifiers.c.sequence > last)).all():
        for sequence, report, numbers in rows:
            connection.execute(
                sa.update(_classifiers)
                .where(_classifiers.c.sequence == sequence)
                .values(report=json.dumps(_by_number(json.loads(report), json.loads(numbers))))
            )
        last = rows[-1].sequence


def _by_number(report: dict[str, Any], numbers: list[int]) -> dict[str, Any]:
    held_out = report["held_out"]
    suspects = [
        {"number": numbers[suspect["example"]]} | {key: value for key, value in suspect.items() if key != "example"}
        for suspect in held_out["suspects"]
    ]
    return {**report, "held_out": {**held_out, "suspects": suspects}}
