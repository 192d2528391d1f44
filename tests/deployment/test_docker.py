"""The images, as far as a machine without Docker can tell: linted, cross-checked, and their steps
carried out in a folder."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from comln_serve.configuration.settings import Settings
from comln_serve.server.serve import allowed_hosts
from tests.support import http
from tests.support.documents import document
from tests.support.image_files import colour_support
from tests.support.live import live_server
from tests.support.messages import adapt_form
from tests.support.paths import REPOSITORY
from tests.support.programs import python
from tests.support.variables import VARIABLES, settings_of

DOCKERFILE = REPOSITORY / "Dockerfile"
REQUIREMENTS = REPOSITORY / "deploy" / "docker" / "requirements.py"
HADOLINT = Path(sys.executable).with_name("hadolint")


@dataclass(frozen=True)
class Step:
    """An instruction of the Dockerfile, in the stage it belongs to."""

    stage: str
    instruction: str
    text: str


def read_dockerfile() -> tuple[list[Step], dict[str, str]]:
    """The instructions in order, and by stage the one it starts from."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    steps: list[Step] = []
    parents: dict[str, str] = {}
    stage = ""
    for logical in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if not logical.strip():
            continue
        instruction, _, text = logical.partition(" ")
        if instruction == "FROM":
            parent, _, stage = text.partition(" AS ")
            parents[stage] = parent
        else:
            steps.append(Step(stage, instruction, text))
    return steps, parents


STEPS, PARENTS = read_dockerfile()


def steps_of(stage: str, instruction: str) -> list[str]:
    """What an instruction says in a stage and those it is built on, the lowest first."""
    below = steps_of(PARENTS[stage], instruction) if stage in PARENTS else []
    own = [s.text for s in STEPS if s.stage == stage and s.instruction == instruction]
    return below + own


def environment_of(stage: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in (*steps_of(stage, "ARG"), *steps_of(stage, "ENV")):
        for word in shlex.split(text):
            name, _, value = word.partition("=")
            found[name] = re.sub(r"\$\{(\w+)\}", lambda m: found.get(m[1], m[0]), value)
    return found


def required(variant: str) -> list[str]:
    done = python(REQUIREMENTS, variant)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not made for this platform")
def test_the_linter_finds_nothing() -> None:
    done = subprocess.run([HADOLINT, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_dockerfile_has_a_cpu_and_a_cuda_target() -> None:
    assert {"cpu", "cuda"} <= set(PARENTS)
    assert list(PARENTS)[-1] == "cpu", "the default target"


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_what_an_image_is_set_to_exists(target: str) -> None:
    environment = environment_of(target)
    assert {name for name in environment if name.startswith("COMLN_")} <= VARIABLES
    settings = settings_of(environment)
    assert settings.provider == target
    assert steps_of(target, "EXPOSE") == [str(settings.port)]
    (check,) = steps_of(target, "HEALTHCHECK")
    assert f"'127.0.0.1', {settings.port}, " in check
    # Probes come to the container's address, others to the name of a service.
    hosts = ["127.0.0.1:8000", "10.244.1.7:8000", "comln-serve:8000"]
    assert all(map(allowed_hosts(settings).allow, hosts))
    # Nothing runs as root, by a number that Kubernetes can check.
    (user,) = steps_of(target, "USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    (volume,) = steps_of(target, "VOLUME")
    assert settings.database_url == f"sqlite:///{volume}/comln-serve.db"
    assert any(f"--owner={user.partition(':')[0]}" in run and volume in run for run in steps_of(target, "RUN"))
    assert any(text.endswith(f" {settings.models_dir}") for text in steps_of(target, "COPY"))


def test_what_is_copied_is_there_and_not_ignored() -> None:
    allowed = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        word
        for step in STEPS
        if step.instruction == "COPY" and "--from" not in step.text
        for word in [w for w in step.text.split() if not w.startswith("--")][:-1]
    ]
    assert copied
    for source in copied:
        assert (REPOSITORY / source).exists(), source
        assert any(source == entry or source.startswith(f"{entry}/") for entry in allowed), source
    for entry in allowed:
        assert any(source == entry or source.startswith(f"{entry}/") for source in copied), entry


def test_the_document_names_what_there_is() -> None:
    text = document("deployment.md")
    targets = re.findall(r"--target (\w+)", text)
    assert set(targets) == {"cpu", "cuda"}
    variables = set(re.findall(r"COMLN_[A-Z_]+", text))
    assert variables
    assert variables <= VARIABLES | {"COMLN_CONFIG"}
    own = set(re.findall(r"--(?:max|drain|port)[a-z-]*", text))
    assert own
    assert own <= {f"--{name.replace('_', '-')}" for name in Settings.model_fields}
    (arguments,) = set(re.findall(r"--build-arg (\w+)=", text))
    assert arguments in environment_of("cpu")
    body = Settings.model_fields["max_body_bytes"].default
    assert f"client_max_body_size {body // 2**20}m;" in text
    (waits,) = re.findall(r"proxy_read_timeout (\d+)s;", text)
    assert int(waits) > sum(
        Settings.model_fields[f"max_{name}_seconds"].default for name in ("queue", "inference", "solve")
    )


def test_an_image_has_one_runtime_and_the_rest_of_the_dependencies() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert required("common") == [*project["dependencies"], *extras["postgres"], *extras["otel"]]
    assert not any("torch" in line or "onnxruntime" in line for line in required("common"))
    (runtime,) = required("cpu")
    assert re.fullmatch(r"onnxruntime>=[\d.]+", runtime), runtime
    driver, runtime = required("cuda")
    assert re.fullmatch(r"nvidia-ml-py>=[\d.]+", driver), driver
    assert re.fullmatch(r"onnxruntime-gpu\[cuda,cudnn\]>=[\d.]+", runtime), runtime


def test_another_variant_is_refused() -> None:
    done = python(REQUIREMENTS, "tpu")
    assert done.returncode != 0
    assert "received 'tpu'; the variants are common, cpu, cuda" in done.stderr


@pytest.mark.alone
@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_every_version_an_image_gets_is_pinned(variant: str, tmp_path: Path) -> None:
    """What pip would install, of wheels, into an empty environment."""
    (tmp_path / "requirements.txt").write_text("\n".join([*required("common"), *required(variant)]))
    report = tmp_path / "report.json"
    install = steps_of(f"build-{variant}", "RUN")[-1]
    options = shlex.split(install.partition("pip install ")[2])
    resolve = f"-m pip install --dry-run --ignore-installed --quiet --report {report}".split()
    command = [sys.executable, *resolve, *options]
    command[command.index("requirements.txt")] = str(tmp_path / "requirements.txt")
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=280)
    found = {
        re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower(): item["metadata"]["version"]
        for item in json.loads(report.read_text())["install"]
    }
    pinned = {
        re.sub(r"[-_.]+", "-", name).lower(): version
        for file in ("constraints.txt", "deploy/docker/constraints-cuda.txt")
        for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (REPOSITORY / file).read_text(), re.MULTILINE)
    }
    assert {name: pinned.get(name) for name in found} == found
    runtime, other = "onnxruntime", "onnxruntime-gpu"
    if variant == "cuda":
        runtime, other = other, runtime
    assert runtime in found
    assert other not in found
    assert "torch" not in found
    assert any(name.startswith("nvidia-") for name in found) == (variant == "cuda")


@pytest.mark.alone
@pytest.mark.timeout(900)
def test_the_steps_of_the_cpu_image_make_a_server_that_starts(models_dir: Path, tmp_path: Path) -> None:
    """Carried out in order under a folder in place of /opt; then the server starts from it."""
    opt, source = tmp_path / "opt", tmp_path / "opt" / "src"
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        **{name: value.replace("/opt/", f"{opt}/") for name, value in environment_of("build-cpu").items()},
        "PATH": f"{opt}/comln/bin{os.pathsep}{Path(sys.base_prefix) / 'bin'}{os.pathsep}" + os.environ["PATH"],
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }
    where = source
    for step in [s for s in STEPS if s.stage in ("build", "build-cpu")]:
        text = step.text.replace("/opt", str(opt))
        if step.instruction == "WORKDIR":
            where = Path(text)
            where.mkdir(parents=True, exist_ok=True)
        elif step.instruction == "COPY":
            *sources, target = text.split()
            for name in sources:
                copy(REPOSITORY / name, where / target, into=target.endswith("/"))
        elif step.instruction == "RUN":
            subprocess.run(["sh", "-c", text], cwd=where, env=environment, check=True)

    installed = pip_list(opt / "comln" / "bin" / "python", environment)
    assert "onnxruntime" in installed
    assert installed.isdisjoint({"onnxruntime-gpu", "torch", "onnxscript", "pytest"})
    assert not list((opt / "comln").glob("lib/python*/site-packages/training"))
    compiled = sorted(path.name for path in (opt / "numba").rglob("*.nb?"))
    assert compiled

    # The entrypoint and the environment of the image, its absolute paths replaced.
    entrypoint = tmp_path / "entrypoint"
    shutil.copy(REPOSITORY / "deploy" / "docker" / "entrypoint.sh", entrypoint)
    (opt / "numba").chmod(0o555)
    with live_server(models_dir, tmp_path, executable=str(entrypoint), program=[], environment=environment) as server:
        http.post(f"{server.url}/adapt", **adapt_form(colour_support())).raise_for_status()
        assert http.get(f"{server.url}/health/ready").json()["provider"]["tiny"] == "cpu"
        port = str(urlsplit(server.url).port)
        check = json.loads(steps_of("cpu", "HEALTHCHECK")[0].partition(" CMD ")[2])
        command = [part.replace("8000", port) for part in check]
        subprocess.run(command, env=environment, check=True)
        server.process.send_signal(signal.SIGTERM)  # reaches the server, not a shell around it
        assert server.process.wait(timeout=30) == 0
        assert subprocess.run(command, env=environment, stderr=-3, check=False).returncode != 0
    # Everything was compiled before: nothing was added.
    assert sorted(path.name for path in (tmp_path / "cache").rglob("*.nb?")) == compiled


def copy(source: Path, target: Path, *, into: bool) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.mkdir(parents=True, exist_ok=True) if into else None
        shutil.copy(source, target)


def pip_list(python: Path, environment: Mapping[str, str]) -> set[str]:
    done = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json"], env=environment, capture_output=True, text=True, check=True
    )
    return {item["name"].lower() for item in json.loads(done.stdout)}
