"""Where classifiers stand among those of their tenant, for paging.

The tables' own sequence counts all tenants' classifiers: pages that started from it would tell one
tenant how busy the others are.
"""

from sqlalchemy import Connection

from comln_serve.storage.dialects import upsert
from comln_serve.storage.tables import tenants


def next_position(connection: Connection, tenant: str) -> int:
    """One more than the last; until the transaction ends no other gets one."""
    statement = upsert(connection, tenants).values(tenant=tenant, last_position=1)
    position: int = connection.execute(
        statement.on_conflict_do_update(
            index_elements=[tenants.c.tenant], set_={"last_position": tenants.c.last_position + 1}
        ).returning(tenants.c.last_position)
    ).scalar_one()
    return position
