"""HTTP requests to servers on this machine.

httpx reads the certificates of this machine for each pool of connections, which takes 25 ms; plain HTTP needs none.
"""

import ssl
from functools import partial

import httpx2

NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
OPTIONS = {"verify": NO_CERTIFICATES, "timeout": 60.0}  # seconds; the machine may be busy

request = partial(httpx2.request, **OPTIONS)
get = partial(httpx2.get, **OPTIONS)
post = partial(httpx2.post, **OPTIONS)
delete = partial(httpx2.delete, **OPTIONS)
session = partial(httpx2.Client, **OPTIONS)
