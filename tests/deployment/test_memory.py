"""Memory: the sum of the server's limits, as documented, is what every deployment allows."""

import re
from typing import Any

import yaml

from comln_serve.api.routes.export import MOST_EXPORTS
from comln_serve.configuration.settings import Settings
from comln_serve.engine.embedding.decoders import SMALL
from comln_serve.engine.queues import _MOST_SOLVES
from tests.deployment.test_helm import container, render
from tests.deployment.test_kubernetes import CONTAINER, FOLDER, load
from tests.deployment.test_monitoring import DASHBOARD, rules
from tests.deployment.test_systemd import CUDA, UNIT
from tests.support.documents import document

GIB = 2**30
DOCUMENT = document("deployment.md")
DEFAULTS: dict[str, Any] = {name: field.default for name, field in Settings.model_fields.items()}
PARTS = {
    "at rest": 0.55 * GIB,
    "--max-pending-bytes": DEFAULTS["max_pending_bytes"],
    "--max-json-bytes": 6 * DEFAULTS["max_json_bytes"],  # of four bytes a character
    "--max-image-pixels": 16 * DEFAULTS["max_image_pixels"],
    "--decode-threads": 8 * 8 * SMALL,
    "--inference-threads": 8 * 35_000_000,
    "--classifier-cache-bytes": DEFAULTS["classifier_cache_bytes"],
    "--max-examples": _MOST_SOLVES * 0.6 * GIB,
    "--max-pending-images": 3 * 224**2 * DEFAULTS["max_pending_images"],
    "64 requests of 512 images": 64 * DEFAULTS["max_images"] * 4 * 3 * 1600,
    "and two lists": 0.6 * GIB,
    "one comparison of images with examples": 0.2 * GIB,
}
# In GiB, as documented.
(LIMIT, CUDA_LIMIT) = map(int, re.findall(r"limit is (\d+) GiB, (\d+) GiB with CUDA", DOCUMENT)[0])


def test_the_table_adds_up() -> None:
    assert MOST_EXPORTS == 2
    for part, size in PARTS.items():
        (line,) = [line for line in DOCUMENT.splitlines() if line.startswith("|") and part in line]
        assert abs(float(line.split("|")[3].split()[0]) - size / GIB) < 0.06, line
    assert f"| sum | | {sum(PARTS.values()) / GIB:.1f} GiB |" in DOCUMENT
    assert sum(PARTS.values()) < LIMIT * GIB


def test_the_formula_is_that_of_the_table() -> None:
    section = DOCUMENT.partition("## The memory of other settings")[2]
    formula = section.split("```")[1].partition("\n")[2]
    values = {**DEFAULTS, "decode_threads": 8, "inference_threads": 8, "cores": 64, "workers": 1, "GiB": GIB}
    values |= {"min": min, "max": max}
    memory = eval(f"({formula})", {"__builtins__": {}}, values)
    assert abs(memory - sum(PARTS.values())) < 1e-6 * GIB


def test_every_deployment_allows_it() -> None:
    assert CONTAINER["resources"]["limits"]["memory"] == f"{LIMIT}Gi"
    patches = [yaml.safe_load(item["patch"]) for item in load(FOLDER / "cuda" / "kustomization.yaml")["patches"]]
    (of_cuda,) = [step["value"] for (*steps,) in patches for step in steps if step["path"].endswith("/memory")]
    assert of_cuda == f"{CUDA_LIMIT}Gi"
    assert (UNIT["MemoryMax"], CUDA["MemoryMax"]) == ([f"{LIMIT}G"], [f"{CUDA_LIMIT}G"])
    (alert,) = [rule for rule in rules() if rule["alert"] == "ComlnMemoryNearLimit"]
    assert alert["expr"].endswith(f" > 0.9 * {LIMIT} * 1024 ^ 3")
    (panel,) = [panel for panel in DASHBOARD["panels"] if panel["title"] == "Memory"]
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"] == LIMIT * GIB


def test_the_chart_allows_it() -> None:
    assert container(render())["resources"]["limits"]["memory"] == f"{LIMIT}Gi"
    assert container(render("provider=cuda"))["resources"]["limits"]["memory"] == f"{CUDA_LIMIT}Gi"
