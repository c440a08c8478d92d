# make demo    set up and run the main job on the sample corpus, with real weights
# make test    set up and pass the tests
# make check   what CI runs: lint, format, types, and the tests
#
# Each sets up what it needs in .venv. To use an environment that is active already: pip install . and the commands
# themselves (retr demo; pytest).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
# Where PyTorch publishes its CPU builds; asked only if the package index in use has none.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
export OMP_WAIT_POLICY := passive

.PHONY: demo test check lint clean

demo: $(VENV)/.run
	$(BIN)/retr demo

test: $(VENV)/.test
	$(BIN)/python -m pytest

check: lint test

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.torch: Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "retr needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24'
	@# Without an NVIDIA GPU the CPU build serves, and spares gigabytes of CUDA. macOS has no other.
	if [ "$$(uname -s)" != Linux ] || command -v nvidia-smi >/dev/null 2>&1; then \
	    $(BIN)/python -m pip install --quiet torch==$(TORCH); \
	else \
	    $(BIN)/python -m pip install --quiet torch==$(TORCH)+cpu 2>/dev/null \
	    || $(BIN)/python -m pip install --quiet torch==$(TORCH)+cpu --extra-index-url $(TORCH_CPU_INDEX) \
	    || $(BIN)/python -m pip install --quiet torch==$(TORCH); \
	fi
	touch $@

$(VENV)/.run: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[bundled]'
	touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[bundled,test]'
	touch $@ $(VENV)/.run
