"""The HTTP routes: each reads the request, calls the engine and writes the answer."""

from comln_serve.api.routes import adaptation, classifiers, examples, export, operations

# Looked through in this order, so those that are asked most come first.
ROUTERS = tuple(part.router for part in (adaptation, classifiers, examples, export, operations))
