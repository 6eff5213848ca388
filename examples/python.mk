# Tests and servers of the examples in Python, with the group `examples` of pyproject.toml in the repository's .venv.
include ../../project.mk
.DEFAULT_GOAL := run
.PHONY: run test

# The package for Python from its folder.
export PYTHONPATH := $(REPOSITORY)/clients/python/src

# Runs a program beside its server. Both end when make ends.
BESIDE_SERVER = exec $(PYTHON) ../local_server.py --parent $$PPID

run test: python-examples module
test: ## run the tests, with $SERVER
	$(PYTHON) -m pytest
