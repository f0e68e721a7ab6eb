# Usage: make run | make test | make engine | make pack | make clean
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --disable-pip-version-check --quiet

.PHONY: run test install engine pack clean

run: install
	$(BIN)/python scripts/verify.py

test: .venv/.tested-with
	$(BIN)/python -m pytest

install: .venv/.installed

# torch comes by itself (its build differs by platform) and flashinfer-bench without its GPU dependencies.
.venv/.installed: requirements/base.txt requirements/torch.txt requirements/flashinfer-bench.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --require-hashes -r requirements/base.txt
	$(PIP) -r requirements/torch.txt
	$(PIP) --require-hashes --no-deps -r requirements/flashinfer-bench.txt
	touch $@

.venv/.tested-with: .venv/.installed requirements/test.txt
	$(PIP) --require-hashes -r requirements/test.txt
	touch $@

pack: install
	$(BIN)/python scripts/pack.py

clean:
	rm -rf .venv .venv-engine blob/generated .pytest_cache
