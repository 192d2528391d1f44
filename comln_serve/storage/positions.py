"""Numbers the classifiers of each tenant, for paging.

The table's own sequence counts all tenants' classifiers: used for paging, it would tell a tenant
how many classifiers others make.
"""

from sqlalchemy import Connection

from comln_serve.storage.dialects import upsert
from comln_serve.storage.tables import tenants


def next_position(connection: Connection, tenant: str) -> int:
    """The tenant's next position. Other transactions wait for theirs until this one ends."""
    statement = upsert(connection, tenants).values(tenant=tenant, last_position=1)
    position: int = connection.execute(
        statement.on_conflict_do_update(
            index_elements=[tenants.c.tenant], set_={"last_position": tenants.c.last_position + 1}
        ).returning(tenants.c.last_position)
    ).scalar_one()
    return position
