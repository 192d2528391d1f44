# `make demo` and `make test` are all a newcomer needs. Everything is installed into .venv.

VENV := .venv
BIN := $(VENV)/bin
# The first of these that is Python 3.11 or newer; override with `make PYTHON=... demo`.
PYTHON ?= $(shell for p in python3 python python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

PORT ?= 8000
# What computes embeddings (the extras of pyproject.toml): gpu where there is an NVIDIA GPU, or where it is installed.
RUNTIME ?= $(if $(wildcard /dev/nvidia0 /dev/dxg $(VENV)/lib/python3*/site-packages/onnxruntime_gpu-*),gpu,cpu)

# The last one that runs in Debian's node.
LIGHTHOUSE := 12.8.2

# Test processes; a file is run by one of them. The files that take longest come first (tests/conftest.py).
JOBS ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# What runs in one process: no torch, no Ray.
FAST := $(addprefix tests/,api bundle configuration engine flow imaging report security storage)

.PHONY: demo serve test test-fast test-slow test-alone coverage lint format bench bench-peers paper docs site notebook browser screenshots ops-tools clean

demo: $(VENV)/.server  ## start a server, adapt it to example images, print its accuracy
	$(BIN)/python examples/demo.py

serve: $(VENV)/.server  ## serve the bundles in models/; make serve PORT=8001
	$(BIN)/comln-serve --port $(PORT)

test: $(VENV)/.dev  ## the suite, but for its slow tests: a few minutes
	$(PYTEST) -m "not slow and not alone"

test-fast: $(VENV)/.dev  ## the server in one process, on SQLite: one to three minutes, while you work
	$(PYTEST) -m "not slow and not alone and not process and not postgresql" $(FAST)

test-slow: $(VENV)/.dev  ## the tests that `make test` leaves out, in browsers, with servers, of networks
	$(PYTEST) -m "slow and not alone"
	$(MAKE) test-alone

test-alone: $(VENV)/.dev  ## of these, the ones that need the machine for themselves
	$(BIN)/python -m pytest -m alone

coverage: $(VENV)/.dev  ## what `make test` runs, and which lines and branches of the server that covers
	$(PYTEST) -m "not slow and not alone" --cov --cov-report=term

lint: $(VENV)/.dev  ## style, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.bench  ## side-by-side benchmarks, for a quiet machine
	$(BIN)/python -m benchmarks.adaptation
	$(BIN)/python -m benchmarks.meta_gradient
	$(BIN)/python -m benchmarks.workers
	$(BIN)/python -m benchmarks.stored
	$(BIN)/python -m benchmarks.hostile
	for bundle in models/*/; do \
	    $(BIN)/python -m benchmarks.startup $$bundle && $(BIN)/python -m benchmarks.serving $$bundle || exit 1; \
	done

bench-peers: $(VENV)/.bench  ## this server beside others, each in an environment of its own; for a quiet machine
	$(BIN)/python -m benchmarks.peers install
	for bundle in models/photos-efficientnet-lite0 models/miniimagenet-conv4; do \
	    $(BIN)/python -m benchmarks.peers $$bundle || exit 1; \
	done

paper: $(VENV)/.dev  ## regenerate docs/paper.md from what has been measured
	$(BIN)/python -m benchmarks.paper > docs/paper.md

docs: $(VENV)/.server  ## regenerate docs/settings.md
	$(BIN)/python docs/_hooks/settings_table.py > docs/settings.md

# Taken out of their packages: nothing is installed system-wide, and no Prometheus is started.
ops-tools: $(BIN)/promtool $(BIN)/helm  ## what the tests of deploy/monitoring and deploy/helm need, on Debian

$(BIN)/promtool: | $(VENV)/bin/python
	set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; bin=$$(realpath $(BIN)); cd "$$folder"; \
	apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; \
	dpkg-deb --extract prometheus_*.deb .; cp usr/bin/prometheus usr/bin/promtool "$$bin"

$(BIN)/helm: tests/support/install_helm.py | $(VENV)/bin/python
	$(BIN)/python tests/support/install_helm.py $(BIN)

site: $(VENV)/.docs  ## the documentation as a website, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

notebook: $(VENV)/.dev  ## run docs/notebook.ipynb, its outputs in place
	$(BIN)/python -m tests.support.notebook docs/notebook.ipynb

browser: $(VENV)/.lighthouse-$(LIGHTHOUSE)  ## what the tests of the page need: Debian's browsers (as root), Lighthouse
	@command -v chromium && command -v chromedriver && command -v firefox-esr && command -v WebKitWebDriver && \
	    command -v Xvfb || { apt-get update -q && apt-get install -q -y --no-install-recommends \
	    chromium chromium-driver firefox-esr webkit2gtk-driver xvfb; }

$(VENV)/.lighthouse-$(LIGHTHOUSE): | $(VENV)/bin/python
	@command -v npm || { apt-get update -q && apt-get install -q -y --no-install-recommends nodejs npm; }
	npm install --prefix $(VENV)/lighthouse --ignore-scripts --no-audit --no-fund lighthouse@$(LIGHTHOUSE)
	ln -sf ../lighthouse/node_modules/.bin/lighthouse $(BIN)/lighthouse
	@touch $@

screenshots: $(VENV)/.dev  ## the pictures in docs/images, by the page itself
	$(BIN)/python -m tests.support.screenshots docs/images

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis .coverage*

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; none was found" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The server's environment: no torch.
$(VENV)/.server: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(RUNTIME),client,heic]"
	@touch $@

# What builds the documentation's site.
$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@touch $@

# The server's, plus trainer, test tools, linters and the site's builder.
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(RUNTIME),dev]"
	@touch $@ $(VENV)/.server $(VENV)/.docs

# And what the benchmarks compare with.
$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(RUNTIME),bench]"
	@touch $@ $(VENV)/.dev $(VENV)/.server $(VENV)/.docs
