"""The Helm chart: rendered by Helm itself, valid by Kubernetes' schemas, and equal to what kustomize builds."""

import json
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from comln_serve.configuration.settings import Settings
from comln_serve.server.serve import _CLOSE_SECONDS
from tests.deployment.test_kubernetes import FOLDER, VERSIONS
from tests.support.paths import REPOSITORY
from tests.support.tools import tool
from tests.support.variables import settings_of

CHART = REPOSITORY / "deploy" / "helm" / "comln-serve"
# What only the chart has: labels so that releases share a namespace, and the mark that keeps the volume.
ADDED = {
    *(f"app.kubernetes.io/{name}" for name in ("instance", "managed-by", "version")),
    *("helm.sh/chart", "helm.sh/resource-policy", "imagePullPolicy"),
}

POSTGRESQL = "database.secretName=comln-serve-database"
OVERLAYS = {"base": [], "cuda": ["provider=cuda"], "postgresql": [POSTGRESQL]}
Objects = dict[str, dict[str, Any]]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, check=False)


def render(*values: str, release: str = "comln-serve") -> Objects:
    """The objects that a release with these values makes, by kind."""
    done = helm("template", release, CHART, *(word for value in values for word in ("--set", value)))
    assert (done.returncode, done.stderr) == (0, "")
    return {item["kind"]: item for item in yaml.safe_load_all(done.stdout) if item is not None}


def refusal(*values: str) -> str:
    done = helm("template", "comln-serve", CHART, *(word for value in values for word in ("--set-json", value)))
    assert done.returncode != 0, done.stdout
    return done.stderr


def container(objects: Objects) -> dict[str, Any]:
    (found,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    return found


def environment(objects: Objects) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container(objects)["env"]}


def comparable(value: Any) -> Any:
    """Without what the chart adds on purpose, and with variables in the order of their names."""
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: comparable(item) for key, item in value.items() if key not in ADDED}
    if "env" in kept:
        kept["env"].sort(key=lambda item: item["name"])
    return {key: item for key, item in kept.items() if not (key == "annotations" and item == {})}


def test_helm_finds_no_fault() -> None:
    for values in OVERLAYS.values():
        done = helm("lint", "--strict", CHART, *(word for value in values for word in ("--set", value)))
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_makes_what_kustomize_makes(overlay: str) -> None:
    done = subprocess.run([tool("kubectl"), "kustomize", FOLDER / overlay], capture_output=True, text=True, check=True)
    built = {item["kind"]: item for item in yaml.safe_load_all(done.stdout)}
    rendered = render(*OVERLAYS[overlay])
    assert set(rendered) == set(built)
    for kind, item in built.items():
        assert comparable(rendered[kind]) == comparable(item), kind


EVERYTHING = [
    *("requireKeys=true", "ingress.enabled=true", "ingress.host=comln.example.org", "ingress.tlsSecret=tls"),
    *("ingress.className=nginx", "allowedHosts={comln.example.com}", "settings.max_images=100"),
    *("imagePullSecrets[0].name=registry", "nodeSelector.pool=gpu", "tolerations[0].operator=Exists"),
    *("networkPolicy.from[0].podSelector.matchLabels.app=nginx", "networkPolicy.egress[0].ports[0].port=4318"),
    *("provider=cuda", "gpus=2", "resources.limits.cpu=4", "service.port=8080", "image.repository=r.example.org/comln"),
    "models.existingClaim=bundles",
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [*OVERLAYS.values(), EVERYTHING, [*EVERYTHING, POSTGRESQL]])
def test_rendered_objects_are_valid(values: list[str], version: str) -> None:
    for item in render(*values).values():
        kubernetes_validate.validate(item, version, strict=True)


def test_values_reach_the_objects() -> None:
    objects = render(*EVERYTHING)
    own = container(objects)
    assert own["image"] == "r.example.org/comln:cuda"
    assert own["resources"]["limits"] == {"memory": "9Gi", "nvidia.com/gpu": "2", "cpu": 4}
    variables = environment(objects)
    assert variables["COMLN_REQUIRE_KEYS"] == "true"
    assert variables["COMLN_ALLOWED_HOSTS"] == "comln.example.com,comln.example.org"
    assert variables["COMLN_MAX_IMAGES"] == "100"
    settings_of(variables)
    (mount,) = [item for item in own["volumeMounts"] if item["name"] == "models"]
    assert mount == {"name": "models", "mountPath": "/models", "readOnly": True}
    claim = {"claimName": "bundles", "readOnly": True}
    volumes = objects["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "models", "persistentVolumeClaim": claim} in volumes
    (backend,) = objects["Ingress"]["spec"]["rules"][0]["http"]["paths"]
    assert backend["backend"]["service"]["name"] == objects["Service"]["metadata"]["name"]
    assert objects["Ingress"]["spec"]["tls"] == [{"hosts": ["comln.example.org"], "secretName": "tls"}]
    (rule,) = objects["NetworkPolicy"]["spec"]["ingress"]
    assert {"podSelector": {"matchLabels": {"app": "nginx"}}} in rule["from"]
    assert objects["NetworkPolicy"]["spec"]["egress"] == [{"ports": [{"port": 4318}]}]
    assert len(render(*EVERYTHING, POSTGRESQL)["NetworkPolicy"]["spec"]["egress"]) == 3
    assert (
        render("image.tag=1.2")["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"] == "comln-serve:1.2"
    )


def test_large_numbers_are_written_in_full(tmp_path: Path) -> None:
    """Helm reads the numbers of a file as floats, which Go would print as 5.36870912e+08."""
    (tmp_path / "values.yaml").write_text(
        "settings: {max_pending_bytes: 536870912, max_queue_seconds: 2.5, tls_key: /k}"
    )
    options = f"--values {tmp_path / 'values.yaml'} --show-only templates/deployment.yaml"
    done = helm("template", "comln-serve", CHART, *options.split())
    variables = environment({"Deployment": yaml.safe_load(done.stdout)})
    assert variables["COMLN_MAX_PENDING_BYTES"] == "536870912"
    assert variables["COMLN_MAX_QUEUE_SECONDS"] == "2.5"
    assert variables["COMLN_TLS_KEY"] == "/k"


def test_one_pod_has_the_file_and_several_share_a_database() -> None:
    own, shared = (
        render("autoscaling.enabled=true", "replicas=5"),
        render(POSTGRESQL, "autoscaling.enabled=false", "replicas=5"),
    )
    assert own["Deployment"]["spec"]["replicas"] == 1
    assert own["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    assert "HorizontalPodAutoscaler" not in own | shared
    assert shared["Deployment"]["spec"]["replicas"] == 5
    assert "PersistentVolumeClaim" not in render("persistence.existingClaim=mine")
    assert "NetworkPolicy" not in render("networkPolicy.enabled=false")


def test_two_releases_do_not_meet() -> None:
    first, second = render(release="photos")["Deployment"], render(release="letters")["Deployment"]
    assert first["metadata"]["name"] == "photos-comln-serve"
    assert first["spec"]["selector"] != second["spec"]["selector"]


def test_the_pod_is_given_time_to_drain() -> None:
    objects = render("drain.delaySeconds=5", "drain.seconds=100")
    variables = environment(objects)
    needed = float(variables["COMLN_DRAIN_DELAY_SECONDS"]) + float(variables["COMLN_DRAIN_SECONDS"]) + _CLOSE_SECONDS
    assert objects["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > needed == 110


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ('provider="gpu"', "/provider"),
        ("reqiureKeys=true", "reqiureKeys"),
        ('settings={"port": 80}', "invalid propertyName"),
        ('settings={"MAX_IMAGES": 80}', "invalid propertyName"),
        ('settings={"max_image": 80}', "invalid propertyName 'max_image'"),
        ('ingress={"enabled": true}', "ingress.host"),
        ("replicas=0", "/replicas"),
    ],
)
def test_wrong_values_are_refused(value: str, named: str) -> None:
    assert named in refusal(value)


def test_an_autoscaler_needs_a_range() -> None:
    few = 'autoscaling={"enabled": true, "minReplicas": 9, "maxReplicas": 8, "pendingImages": 96}'
    assert "autoscaling.minReplicas" in refusal(few, 'database={"secretName": "x", "secretKey": "url", "port": 5432}')


def test_settings_are_those_of_the_server() -> None:
    """A mistyped one is refused here, rather than by pods that do not start."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    names = schema["properties"]["settings"]["propertyNames"]["enum"]
    values_of_their_own = {
        *("host", "port", "models_dir", "database_url", "provider", "require_keys", "allowed_hosts"),
        *("drain_seconds", "drain_delay_seconds"),
    }
    assert names == sorted(set(Settings.model_fields) - values_of_their_own)
