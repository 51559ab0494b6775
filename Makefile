# make demo   the whole chain on the bundled sample, with a real encoder and without the Hub
# make test   the tests
# make lint   ruff
# make extras W&B and ONNX into the environment, so that their tests run too
# make audit  known faults of the pinned packages (asks PyPI)
# Each but the last makes the environment in .venv first, from requirements.lock.

PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test lint extras audit env clean

demo: env
	$(BIN)/python run.py stage=sts trial=always

test: env
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: env
	$(BIN)/ruff check .

extras: env
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-virtualenv \
		--constraint requirements.lock wandb onnx onnxscript onnxruntime

# Strict: without it a package that PyPI could not be asked about passes.
audit:
	$(PYTHON) -m venv .cache/audit
	.cache/audit/bin/python -m pip install --disable-pip-version-check --quiet pip-audit
	.cache/audit/bin/pip-audit --requirement requirements.lock --no-deps --disable-pip --strict

env: .venv/ready

.venv/ready: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-virtualenv \
		--requirement requirements.lock
	@touch $@

clean:
	rm -rf .venv runs
