# What the examples and the package in Python share: their virtual environment, of the versions in requirements.txt, and their tests.
.DEFAULT_GOAL := run
.PHONY: run test lock

# By where this file is: a package beside the examples includes it too.
include $(dir $(lastword $(MAKEFILE_LIST)))module.mk

# What .venv is made with.
PYTHON3 ?= python3

# The folder of the package in Python, where an example uses it: the requirements of a lock file with versions only name
# what registries have.
CLIENT ?=

VENV := .venv
PYTHON := $(VENV)/bin/python

test: $(VENV)/.ready $(RATELIMIT_MODULE) ## the tests, with $SERVER
	$(PYTHON) -m pytest

lock: $(VENV)/.ready ## requirements.txt, of requirements.in
	$(PYTHON) -m pip install --quiet pip-tools
	$(PYTHON) -m piptools compile --upgrade --strip-extras --no-header --no-emit-index-url \
		--no-emit-find-links --output-file requirements.txt requirements.in

$(VENV)/.ready: requirements.txt Makefile
	$(PYTHON3) -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --requirement requirements.txt
	$(if $(CLIENT),$(PYTHON) -m pip install --quiet --no-deps --editable $(CLIENT))
	@touch $@
