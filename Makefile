# make run      install, check and replay the data of this checkout
# make test     install the test tools, lint and run the tests
# make lint     formatting, rules of style, spelling, types
# make engine   install SGLang for captures
# make capture-ltx   capture, import and replay what is too large for the repository
# make bench-at-size   the same on trees of 146 GB (sparse) and 20 GB (written)
# make explorer  one page to browse everything, offline: results/explorer.html
# make bench    measure the tools themselves (10 GB of scratch space)
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --disable-pip-version-check --quiet

.PHONY: run test lint test-distribution install engine capture-ltx bench bench-at-size explorer docs pack clean

run: install
	$(BIN)/python scripts/verify.py

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: .venv/.tested-with
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/codespell
	$(BIN)/mypy --no-error-summary

# The distribution path with the real engine (needs `make engine`); the miniature of it is in `make test`.
test-distribution: .venv/.tested-with engine
	TEST_DISTRIBUTION=1 $(BIN)/python -m pytest tests/cloud/test_modal_engine.py

install: .venv/.installed

# torch comes by itself (its build differs by platform) and flashinfer-bench without its GPU dependencies.
.venv/.installed: requirements/base.txt requirements/torch.txt requirements/flashinfer-bench.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --require-hashes -r requirements/base.txt
	$(PIP) -r requirements/torch.txt
	$(PIP) --require-hashes --no-deps -r requirements/flashinfer-bench.txt
	touch $@

.venv/.tested-with: .venv/.installed requirements/test.txt requirements/plot.txt
	$(PIP) --require-hashes -r requirements/test.txt
	$(PIP) --require-hashes -r requirements/plot.txt
	touch $@

# SGLang with torch of its own; several GB. Captures change over to this environment by themselves.
engine: .venv-engine/.installed

.venv-engine/.installed: requirements/engine-torch.txt requirements/engine.txt
	test -x .venv-engine/bin/python || $(PYTHON) -m venv .venv-engine
	.venv-engine/bin/pip install --disable-pip-version-check --quiet -r requirements/engine-torch.txt
	.venv-engine/bin/pip install --disable-pip-version-check --quiet --require-hashes --no-deps -r requirements/engine.txt
	touch $@

# Neighborhood attention and attention to prompts need 2 to 27 MiB a tensor at the smallest size, too much for the
# repository: capture them here, import them into a dataset of their own, and replay that.
LTX := results/LTX-2.5-Diffusers-seeded
WINDOW := results/capture/ltx-window

capture-ltx: install engine
	$(BIN)/python scripts/make_seeded_checkpoint.py --kind ltx25 --blocks 1 --output $(LTX)
	$(BIN)/python scripts/capture_diffusion.py --kind ltx25 --model-path $(LTX) --output-root $(WINDOW)/dataset \
		--audio-sdpa-backend math --video-sdpa-backend math --case text_to_video \
		--size text_to_video=224x224x17 --layer det_stages.0 --layer det_stages.1 --layer det_stages.2 \
		--layer diff_blocks --layer attn2 --layer audio_attn2 --steps-captured last \
		--summary results/summaries/ltx_window_11.json
	mkdir -p $(WINDOW)/root
	cp -r definitions tasks $(WINDOW)/root
	$(BIN)/python scripts/capture_inputs.py --import-capture $(WINDOW)/dataset --output-root $(WINDOW)/root
	$(BIN)/python scripts/capture_inputs.py --replay-root $(WINDOW)/root

bench: install
	mkdir -p results/summaries
	$(BIN)/python benchmarks/bench_check.py > results/summaries/tool_benchmarks.jsonl
	$(BIN)/python benchmarks/bench_import.py >> results/summaries/tool_benchmarks.jsonl
	$(BIN)/python benchmarks/bench_compare.py >> results/summaries/tool_benchmarks.jsonl

bench-at-size: .venv/.tested-with
	$(BIN)/python benchmarks/bench_at_size.py
	$(BIN)/python benchmarks/bench_resume.py

explorer: .venv/.tested-with
	$(BIN)/python scripts/build_explorer.py

# Pages and pictures; the pictures keep their bytes with the pinned Matplotlib only.
docs: .venv/.tested-with
	$(BIN)/python scripts/build_docs.py
	$(BIN)/python scripts/plot_shape_distributions.py

pack: install
	$(BIN)/python scripts/pack.py

clean:
	rm -rf .venv .venv-engine blob/generated .pytest_cache
