# `make demo` and `make test` set everything up by themselves in .venv.
PYTHON ?= python3
VENV ?= .venv
# of the fuzzer
INPUTS ?= 20000
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all test-rest test-lmms test-gpu test-app fuzz check format speed clean

demo: $(STAMP)
	$(BIN)/heal run

# Every method and every architecture at least once (tests/covering.py), without the slow tests.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow and not matrix and not browser"

# The full matrix of methods and architectures, and the slow tests.
test-all: test test-rest

# What `make test` leaves out.
test-rest: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "(slow or matrix) and not browser"

# Odd inputs by the thousand; what fails is kept in runs/fuzz and shown again with --replay.
fuzz: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --inputs $(INPUTS) --seed 0

# lmms-eval brings some hundred packages: an environment of its own. The torchvision that it takes along is built for
# CUDA and cannot be imported beside a torch for the CPU; without it everything here works.
test-lmms: .venv-lmms/.installed
	OMP_NUM_THREADS=1 .venv-lmms/bin/python -m pytest -q tests/plugins

.venv-lmms/.installed: pyproject.toml constraints.txt
	test -x .venv-lmms/bin/python || $(PYTHON) -m venv .venv-lmms
	.venv-lmms/bin/python -m pip install --quiet -c constraints.txt "lmms-eval==0.7.3" -e ".[dev,lmms]"
	.venv-lmms/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

# The kernels, on a GPU if there is one, otherwise in Triton's interpreter; and compiled for GPUs that are not there
# (every variant: -m slow).
test-gpu: .venv-gpu/.installed
	OMP_NUM_THREADS=1 TRITON_CACHE_DIR=.venv-gpu/compiled .venv-gpu/bin/python -m pytest -n 2 --dist worksteal -q -m "not slow" tests/kernels

.venv-gpu/.installed: pyproject.toml constraints.txt
	test -x .venv-gpu/bin/python || $(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python -m pip install --quiet -c constraints.txt "torch==2.13.0"
	.venv-gpu/bin/python -m pip install --quiet -c constraints.txt -e ".[dev,gpu]"
	touch $@

# The app and the pages in a real browser: Debian's Chromium, which root gets here. TypeScript checks the types of their
# JavaScript.
test-app: $(VENV)/.app .node/.installed
	@if ! { command -v chromium || command -v google-chrome; } > /dev/null || ! command -v chromedriver > /dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    apt-get update -qq && apt-get install -y -qq chromium chromium-driver > /dev/null; \
	  else echo "no chromium and chromedriver: install Debian's chromium and chromium-driver, or the tests are skipped"; fi; \
	fi
	@if [ -x .node/node_modules/.bin/tsc ]; then .node/node_modules/.bin/tsc -p tests/browser && echo "types of the JavaScript: no error"; fi
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/browser tests/app

# gradio brings a web server; torch stays as it is
$(VENV)/.app: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[app]"
	touch $@

.node/.installed: Makefile
	@mkdir -p .node
	@if command -v npm > /dev/null; then npm install --silent --no-audit --no-fund --prefix .node typescript@5.9.3 \
	  || echo "TypeScript cannot be installed: the types of the JavaScript are not checked"; \
	else echo "no npm: the types of the JavaScript are not checked"; fi
	@touch $@

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

speed: $(STAMP)
	$(BIN)/python benchmarks/decode.py

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .venv-lmms .venv-gpu .node build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache demo
