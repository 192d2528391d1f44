# `make demo` and `make test` are all a newcomer needs. Everything is installed into .venv.

VENV := .venv
BIN := $(VENV)/bin
# The first of these that is Python 3.11 or newer; override with `make PYTHON=... demo`.
PYTHON ?= $(shell for p in python3 python python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Test processes; a file is run by one of them.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: demo serve test test-slow lint format bench docs browser screenshots clean

demo: $(VENV)/.server  ## start a server, adapt it to example images, print its accuracy
	$(BIN)/python examples/demo.py

serve: $(VENV)/.server  ## serve the bundles in models/ on port 8000
	$(BIN)/comln-serve --models-dir models --port 8000 --log-format text

test: $(VENV)/.dev  ## the whole suite, but for tests that take minutes
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadfile

test-slow: $(VENV)/.dev  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

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
	for bundle in models/*/; do \
	    $(BIN)/python -m benchmarks.startup $$bundle && $(BIN)/python -m benchmarks.serving $$bundle || exit 1; \
	done

docs: $(VENV)/.server  ## regenerate docs/settings.md
	$(BIN)/python -m comln_serve.configuration.settings > docs/settings.md

browser:  ## install Debian's Chromium and its driver, which the tests of the page need (as root)
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	    { apt-get update -q && apt-get install -q -y --no-install-recommends chromium chromium-driver; }

screenshots: $(VENV)/.dev  ## the pictures in docs/images, by the page itself
	$(BIN)/python -m tests.support.screenshots docs/images

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; none was found" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The server's environment: no torch.
$(VENV)/.server: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[heic]"
	@touch $@

# The server's, plus trainer, test tools and linters.
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/.server

# And what the benchmarks compare with.
$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	@touch $@ $(VENV)/.dev $(VENV)/.server
