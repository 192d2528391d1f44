"""Builds the two deployments and their Ray Serve options."""

from ray import serve
from ray.serve import Application

from comln_serve.ray_app.api import Api
from comln_serve.ray_app.embedding import Embedding
from comln_serve.ray_app.options import Options
from comln_serve.ray_app.remote_model import CALLS

# Room for requests other than adapt and predict, which the application does not count.
_LIGHT_REQUESTS = 64


def build(options: Options) -> Application:
    """Build the application, for `serve run comln_serve.ray_app:build name=value ...` or a config
    file.

    A config file may override the options of the deployments `Embedding` and `Api` set here:
    `num_replicas`, `autoscaling_config`, `ray_actor_options` and so on.
    """
    embedding = serve.deployment(
        name="Embedding",
        num_replicas=options.embedding_replicas,
        ray_actor_options={"num_cpus": options.cpus_per_embedding_replica, "num_gpus": options.gpus_per_replica},
        # Enough calls of one image each for a batch that runs and one that gathers.
        max_ongoing_requests=2 * options.max_batch_size,
        # Per API replica, beside running calls; more are answered 429. One request always fits.
        max_queued_requests=max(options.max_pending_requests, CALLS),
        graceful_shutdown_timeout_s=options.drain_seconds,
    )(Embedding)
    api = serve.deployment(
        name="Api",
        num_replicas=options.api_replicas,
        ray_actor_options={"num_cpus": options.cpus_per_api_replica},
        # Never reached: the application answers 429 before, in its own error shape.
        max_ongoing_requests=options.max_pending_requests + _LIGHT_REQUESTS,
        graceful_shutdown_timeout_s=options.drain_seconds,
    )(serve.ingress()(Api))
    return api.bind(options.api_settings, embedding.bind(options.embedding_settings))
