"""comln-serve as a Ray Serve application: replicas that answer HTTP, replicas that embed.

    serve run comln_serve.ray_app:build models_dir=/models database_url=postgresql://...

Needs `pip install "comln-serve[cpu,ray]"`. The plain server never imports this package.
"""

from comln_serve.ray_app.application import build

__all__ = ["build"]
