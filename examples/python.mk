# Tests and servers of the examples in Python, with the group `examples` of pyproject.toml in the repository's .venv.
include ../../project.mk
.DEFAULT_GOAL := run
.PHONY: run test

# The package for Python, as it is in its folder.
export PYTHONPATH := $(REPOSITORY)/clients/python/src

# A program and its server, which end with make, whatever ends that.
BESIDE_SERVER = exec $(PYTHON) ../local_server.py --parent $$PPID

run test: python-examples module
test: ## the tests, with $SERVER
	$(PYTHON) -m pytest
