# The developer's interface; CI calls the same targets. `make lab` and `make test` need only Python 3.11 and make.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
export PYTHONUNBUFFERED := 1
export NO_MKDOCS_2_WARNING := 1
export OMP_NUM_THREADS ?= 2

.PHONY: lab test test-vllm rehearsal venv browser lint types site parity figures patches sums commands unit evidence clean help

help:
	@echo "make lab    set up, run the CPU labs on the real engine, build the manual, print its address"
	@echo "make test   every check: lint, types, site, languages, commands of the manual, tests"

# ---- setting up -------------------------------------------------------------------------------------------

venv: $(VENV)/.ready

$(VENV)/.ready: requirements-cpu.txt requirements-dev.txt pyproject.toml
	@echo "== virtual environment with pinned requirements (the first time takes minutes)"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --disable-pip-version-check --progress-bar on -q -r requirements-dev.txt
	$(PY) -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e . || \
	  $(PY) -m pip install --disable-pip-version-check -q --no-deps -e .
	@touch $@

# Chromium looks at the built pages; it comes from Debian's packages.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  echo "== Chromium for the page tests"; \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq chromium chromium-driver fonts-noto-cjk >/dev/null; }

# ---- the main job -----------------------------------------------------------------------------------------

lab: venv
	$(PY) scripts/maintain/lab.py

site: venv
	$(VENV)/bin/mkdocs build --strict -f mkdocs.yml
	$(VENV)/bin/mkdocs build --strict -f mkdocs.en.yml

# ---- checks -----------------------------------------------------------------------------------------------

lint: venv
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: venv
	$(VENV)/bin/mypy

parity: venv
	$(PY) scripts/maintain/parity.py check

figures: venv
	$(PY) scripts/maintain/figures.py check

patches: venv
	$(PY) scripts/maintain/patches.py check

commands: venv
	$(PY) scripts/maintain/commands.py run --tier cpu

evidence: venv
	$(PY) scripts/maintain/evidence.py verify

sums: venv
	$(PY) scripts/maintain/bundle.py sums --check

unit: venv browser
	$(PY) -m pytest

# Chapter 6 beside a real vLLM: an environment of its own, several GB; a job apart from `make test`.
test-vllm: export VLLM_VENV ?= $(CURDIR)/.venv-vllm
test-vllm: venv
	bash scripts/maintain/vllm_env.sh
	$(PY) -m pytest tests_vllm

# The CPU path of the manual from the zip alone, in an empty home, with its own environment.
rehearsal: venv
	$(PY) scripts/maintain/bundle.py build --version v6
	$(PY) scripts/maintain/bundle.py rehearse dist/nanovllm-inference-lab-v6.zip --venv

# The commands of the manual and the tests take minutes each and little of two cores: they run side by side.
test: export OMP_NUM_THREADS := 1
test: venv browser
	$(MAKE) lint types patches figures parity sums site
	$(MAKE) -j2 --output-sync=target commands unit

clean:
	rm -rf site build dist .cache .mypy_cache .ruff_cache .pytest_cache
