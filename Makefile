# Each target sets up what it needs: only Python 3.11 or newer and make have to be there.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DEVELOPED := .venv/.installed-dev

.PHONY: demo test browser lint format bench

demo: $(INSTALLED)  ## RMC against LSTM on a small N-th farthest, at most five minutes on two CPU cores
	$(BIN)/rmc demo

# Two workers of one thread each suit two cores better than one worker of two: most tests are small.
test: lint browser  ## lint, format check and the whole test suite
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

# The explorer's tests drive a Chromium. Root on a Debian system, as in CI, gets one; elsewhere they are skipped.
browser:
	@for name in "$$CHROMIUM" chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v "$$name" > /dev/null && exit; \
	done; { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
		&& apt-get -qq -o Acquire::Retries=0 update \
		&& DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install chromium fonts-dejavu-core > /dev/null; } \
	|| echo "no browser, so the explorer's browser tests are skipped: install chromium, or name one in CHROMIUM"

lint: $(DEVELOPED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(DEVELOPED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python benchmarks/data_generation.py
	$(BIN)/python benchmarks/cores.py

# Installed anew only when the dependencies change: what the package needs, and for tests what its extras need too.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; give one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) .
	touch $@

$(DEVELOPED): $(INSTALLED)
	$(INSTALL) '.[dev]'
	touch $@
