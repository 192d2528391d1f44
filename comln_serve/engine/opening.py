"""Opens bundles: in this process, or in the one that embeds for all processes that serve."""

from concurrent.futures import ThreadPoolExecutor

from comln_serve.bundle import Bundle
from comln_serve.configuration.settings import Settings
from comln_serve.counts import SharedCounts
from comln_serve.engine.bundles import load_bundles
from comln_serve.engine.embedding_process.shared_model import SharedModel
from comln_serve.engine.models import LocalModel, Model
from comln_serve.machine import cpus_of_each


def open_model(bundle: Bundle, settings: Settings, shared: SharedCounts) -> Model:
    """Open a bundle where the server embeds.

    Args:
        shared: tells how many processes serve, and whether another embeds for them.

    Raises:
        StartupError: the bundle or the provider cannot be used.
    """
    if shared.embedder is None:
        return LocalModel(bundle, settings, shared.processes)
    return SharedModel(bundle, settings, shared.embedder_socket, shared.processes)


def load_models(settings: Settings, shared: SharedCounts | None = None) -> dict[str, Model]:
    """Open every bundle of `models_folder`, several at a time, by name.

    Args:
        shared: as above; default: there is only this process.

    Raises:
        StartupError: a bundle or the provider cannot be used.
    """
    whole = shared or SharedCounts()
    bundles = load_bundles(settings)
    # ONNX Runtime prepares a graph on one core, for a second if it is large.
    with ThreadPoolExecutor(cpus_of_each(whole.processes)) as threads:
        models = threads.map(lambda bundle: open_model(bundle, settings, whole), bundles)
        return {model.name: model for model in models}
