"""Counts the classifiers of each tenant, and numbers them for paging.

Counting rows would take longer the more there are. So each tenant's row holds their number, and whoever adds or deletes
classifiers locks this row first, changes it in the same transaction, and then the classifiers. Promotions and changes
of names lock it too: the order is tenant, name, classifiers.

The table's own sequence counts all tenants' classifiers: used for paging, it would tell a tenant
how many classifiers others make.
"""

from collections.abc import Collection

from sqlalchemy import Connection, select, update

from comln_serve.storage.tables import tenants, upsert


def count_new(connection: Connection, tenant: str) -> tuple[int, int]:
    """Count a classifier, which the caller inserts. Other transactions that add or delete classifiers of the tenant
    wait until this one ends.

    Returns:
        Its position, and the tenant's number of classifiers with it and those that have expired and are not yet
        deleted.
    """
    statement = upsert(connection, tenants).values(tenant=tenant, last_position=1, stored=1)
    row = connection.execute(
        statement.on_conflict_do_update(
            index_elements=[tenants.c.tenant],
            set_={"last_position": tenants.c.last_position + 1, "stored": tenants.c.stored + 1},
        ).returning(tenants.c.last_position, tenants.c.stored)
    ).one()
    return row.last_position, row.stored


def count_deleted(connection: Connection, tenant: str, number: int = 1) -> None:
    """Count classifiers of a tenant that are deleted in this transaction."""
    connection.execute(update(tenants).where(tenants.c.tenant == tenant).values(stored=tenants.c.stored - number))


def lock(connection: Connection, of: Collection[str]) -> None:
    """Lock the rows of tenants, always in the same order, until the transaction ends."""
    rows = select(tenants.c.tenant).where(tenants.c.tenant.in_(of)).order_by(tenants.c.tenant)
    connection.execute(rows.with_for_update()).all()
