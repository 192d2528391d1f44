"""The Kubernetes manifests: valid by Kubernetes' own schemas, and consistent with the image and the server."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from comln_serve.api.routes.operations import router
from comln_serve.configuration.settings import Settings
from comln_serve.server.serve import _CLOSE_SECONDS
from tests.deployment.test_docker import environment_of, steps_of
from tests.support.documents import document
from tests.support.paths import REPOSITORY
from tests.support.variables import VARIABLES, settings_of

FOLDER = REPOSITORY / "deploy" / "kubernetes"
VERSIONS = ("1.29.0", "1.37.0")
MANIFESTS = sorted(path for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml")


# Patches are not whole: they are checked once merged with what they patch.
PATCHES = {
    FOLDER / "postgresql" / "deployment.yaml": FOLDER / "base" / "deployment.yaml",
    FOLDER / "postgresql" / "networkpolicy.yaml": FOLDER / "base" / "networkpolicy.yaml",
}
WHOLE = [path for path in MANIFESTS if path not in PATCHES]


def load(path: Path) -> dict[str, Any]:
    (manifest,) = yaml.safe_load_all(path.read_text())
    return manifest


DEPLOYMENT, SERVICE, CLAIM, POLICY = (
    load(FOLDER / "base" / f"{name}.yaml")
    for name in ("deployment", "service", "persistentvolumeclaim", "networkpolicy")
)
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name)
def test_manifests_are_valid(path: Path, version: str) -> None:
    kubernetes_validate.validate(load(path), version, strict=True)


def merged(base: Any, patch: Any) -> Any:
    """As kustomize does: null removes, lists of named things merge by name, others are replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        result = {**base, **{key: merged(base.get(key), value) for key, value in patch.items()}}
        return {key: value for key, value in result.items() if value is not None}
    named = isinstance(base, list) and isinstance(patch, list) and all("name" in i for i in patch)
    if not named:
        return patch
    patches = {item["name"]: item for item in patch}
    old = [merged(item, patches.pop(item["name"], {})) for item in base]
    return [*(merged({}, item) for item in patches.values()), *old]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("patch", "base"), PATCHES.items(), ids=lambda path: path.name)
def test_patched_manifests_are_valid(patch: Path, base: Path, version: str) -> None:
    kubernetes_validate.validate(merged(load(base), load(patch)), version, strict=True)


def test_pods_that_share_a_database_are_scaled() -> None:
    overlay = FOLDER / "postgresql"
    deployment = merged(DEPLOYMENT, load(overlay / "deployment.yaml"))
    spec, pod = deployment["spec"], deployment["spec"]["template"]["spec"]
    assert "replicas" not in spec, "the autoscaler's business"
    assert spec["strategy"]["type"] == "RollingUpdate"
    (container,) = pod["containers"]
    variables = {item["name"]: item for item in container["env"]}
    assert set(variables) - {item["name"] for item in CONTAINER["env"]} == {"COMLN_DATABASE_URL"}
    assert "secretKeyRef" in variables["COMLN_DATABASE_URL"]["valueFrom"]
    assert not any("persistentVolumeClaim" in volume for volume in pod["volumes"])
    assert container["volumeMounts"] == CONTAINER["volumeMounts"]

    scaler = load(overlay / "horizontalpodautoscaler.yaml")
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", DEPLOYMENT["metadata"]["name"])
    (metric,) = scaler["spec"]["metrics"]
    asked = metric["pods"]["metric"]
    labels = ",".join(f'{k}="{v}"' for k, v in asked["selector"]["matchLabels"].items())
    assert f"| `{asked['name']}` | `unit` | `requests` and `images`" in document("monitoring.md")
    assert labels == 'unit="images"'
    assert f"{asked['name']}{{" in document("deployment.md")
    limit = Settings.model_fields["max_pending_images"].default
    batch = Settings.model_fields["max_batch_size"].default
    assert batch < int(metric["pods"]["target"]["averageValue"]) < limit


def test_nothing_scales_where_the_database_has_one_process() -> None:
    for overlay in ("base", "cuda"):
        assert not any("autoscaler" in path.name for path in (FOLDER / overlay).iterdir())


def test_every_manifest_is_listed() -> None:
    listed: list[Path] = []
    for folder in ("base", "cuda", "postgresql"):
        kustomization = load(FOLDER / folder / "kustomization.yaml")
        patches = [item["path"] for item in kustomization.get("patches", []) if "path" in item]
        for name in (*kustomization["resources"], *patches):
            assert (FOLDER / folder / name).exists()
            listed.append(FOLDER / folder / name)
    assert sorted(path for path in listed if path.suffix == ".yaml") == MANIFESTS


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
@pytest.mark.parametrize("overlay", ["base", "cuda", "postgresql"])
def test_overlays_build(overlay: str) -> None:
    done = subprocess.run(["kubectl", "kustomize", FOLDER / overlay], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    built = {item["kind"]: item for item in yaml.safe_load_all(done.stdout)}
    kinds = {"Deployment", "Service", "NetworkPolicy"}
    own = {"HorizontalPodAutoscaler" if overlay == "postgresql" else "PersistentVolumeClaim"}
    assert set(built) == kinds | own
    for item in built.values():
        kubernetes_validate.validate(item, VERSIONS[-1], strict=True)
    (container,) = built["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"comln-serve:{'cuda' if overlay == 'cuda' else 'cpu'}"
    gpus = container["resources"]["limits"].get("nvidia.com/gpu")
    assert gpus == ("1" if overlay == "cuda" else None)


def test_probes_ask_what_is_served() -> None:
    served = {getattr(route, "path", None) for route in router.routes}
    probes = {name: CONTAINER[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["path"] for probe in probes.values()} <= served
    assert {probe["port"] for probe in probes.values()} == {"http"}
    assert probes["livenessProbe"]["path"] == "/health/live"
    assert probes["readinessProbe"]["path"] == "/health/ready"
    annotations = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] in served
    assert annotations["prometheus.io/port"] == environment_of("cpu")["COMLN_PORT"]


def test_ports_and_labels_meet() -> None:
    (port,) = CONTAINER["ports"]
    assert port["name"] == "http"
    assert str(port["containerPort"]) == environment_of("cpu")["COMLN_PORT"]
    (served,) = SERVICE["spec"]["ports"]
    assert served["targetPort"] == "http"
    (rule,) = POLICY["spec"]["ingress"]
    assert [allowed["port"] for allowed in rule["ports"]] == ["http"]
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    for selector in (
        SERVICE["spec"]["selector"],
        DEPLOYMENT["spec"]["selector"]["matchLabels"],
        POLICY["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels


def test_the_pod_is_that_of_the_image() -> None:
    (user,) = steps_of("cpu", "USER")
    context = POD["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    assert context["fsGroup"] == context["runAsGroup"]
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert set(mounts.values()) == {volume["name"] for volume in POD["volumes"]}
    # What is written is on a volume, for the rest is read-only.
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    (data,) = steps_of("cpu", "VOLUME")
    assert data in mounts
    assert str(Path(environment_of("cpu")["NUMBA_CACHE_DIR"]).parent) in mounts
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in POD["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {mounts[data]: CLAIM["metadata"]["name"]}


def test_settings_exist_and_the_pod_is_given_time_to_drain() -> None:
    values = {item["name"]: item["value"] for item in CONTAINER["env"]}
    assert set(values) <= VARIABLES
    settings = settings_of(values)
    needed = settings.drain_delay_seconds + settings.drain_seconds + _CLOSE_SECONDS
    assert POD["terminationGracePeriodSeconds"] >= needed
    # The endpoint is gone before the door closes.
    ready = CONTAINER["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] < settings.drain_delay_seconds


def test_the_database_has_one_process() -> None:
    assert DEPLOYMENT["spec"]["replicas"] == 1
    assert DEPLOYMENT["spec"]["strategy"] == {"type": "Recreate"}
    assert CLAIM["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert POD["enableServiceLinks"] is False
