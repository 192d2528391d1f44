"""One file per revision, oldest first; the newest is `comln_serve.storage.schema.NEWEST`."""
