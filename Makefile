# make demo: set up .venv and judge right and wrong solutions on CPU ranks.   make test: set up and run the tests.
PYTHON ?= $(shell command -v python3.12 || command -v python3.11 || command -v python3)
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check slow clean

demo: .venv/.run
	.venv/bin/python examples/demo.py

test: .venv/.dev
	.venv/bin/python -m pytest

check: .venv/.dev
	scripts/check

slow: .venv/.dev
	.venv/bin/python -m pytest -m slow

clean:
	rm -rf .venv

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' \
		|| { echo "Python 3.11 or 3.12 is needed, found $$($(PYTHON) --version). Set PYTHON=/path/to/python3.12."; exit 2; }
	@$(PYTHON) -m venv .venv \
		|| { echo "No virtual environment could be made. On Debian: apt-get install python3-venv"; rm -rf .venv; exit 2; }

.venv/.run: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[cuda,dev]'
	@touch $@ .venv/.run
