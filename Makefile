# make demo: set up .venv and judge right and wrong solutions on CPU ranks.   make test: set up and run the tests.
RIGHT_VERSION = import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))
# The first that runs and has a version that we support; a name alone may be a shim without an interpreter.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do $$p -c '$(RIGHT_VERSION)' 2>/dev/null && echo $$p && break; done)
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check slow clean

demo: .venv/.run
	.venv/bin/python examples/demo.py

# The tests of problems share cores; the others measure and count processes, and are alone.
test: .venv/.dev
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests/problems --numprocesses auto --dist loadgroup
	.venv/bin/python -m pytest --ignore tests/problems

check: .venv/.dev
	scripts/check

slow: .venv/.dev
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests/problems -m slow --numprocesses auto --dist loadgroup
	.venv/bin/python -m pytest --ignore tests/problems -m slow

clean:
	rm -rf .venv

.venv/bin/python:
	@test -n "$(PYTHON)" \
		|| { echo "Python 3.11 or 3.12 is needed and not on the PATH. Set PYTHON=/path/to/python3.12."; exit 2; }
	@$(PYTHON) -m venv .venv \
		|| { echo "No virtual environment could be made. On Debian: apt-get install python3-venv"; rm -rf .venv; exit 2; }

.venv/.run: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[cuda,dev,models]'
	@touch $@ .venv/.run
