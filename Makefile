# The developer's interface; CI calls the same targets. `make lab` and `make test` need only Python 3.11 and make.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
export PYTHONUNBUFFERED := 1
export NO_MKDOCS_2_WARNING := 1
export OMP_NUM_THREADS ?= 2

.PHONY: lab test test-vllm rehearsal walk venv packages lint types site parity figures patches sums commands unit evidence clean help

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

# What Debian's packages bring: Chromium looks at the built pages, unzip and curl are typed in the manual, and its
# env.sh is for zsh too.
packages:
	@for tool in chromium chromedriver unzip curl zsh; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	[ -z "$$missing" ] || { \
	  echo "== Debian packages for the tests, because these are missing:$$missing"; \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq chromium chromium-driver fonts-noto-cjk unzip curl zsh >/dev/null; }

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

unit: venv packages
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

# Every CPU command of the manual: 5.1 to 5.4, B.1 and B.2 from the zip alone, the others here. The zip holds what is
# committed, so with edits that are not, all of them run here too.
walk: rehearsal
	$(PY) scripts/maintain/commands.py run --tier cpu $$(git diff --quiet HEAD && echo --not-rehearsed)

# The walk and the tests take minutes each and little of two cores: they run side by side.
test: export OMP_NUM_THREADS := 1
test: venv packages
	$(MAKE) lint types patches figures parity sums site
	$(MAKE) -j2 --output-sync=target walk unit

clean:
	rm -rf site build dist .cache .mypy_cache .ruff_cache .pytest_cache
