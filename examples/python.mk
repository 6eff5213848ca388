# What the examples and the package in Python share: their virtual environment, of the versions in requirements.txt, and their tests.
.DEFAULT_GOAL := run
.PHONY: run test lock

# By where this file is: a package beside the examples includes it too.
include $(dir $(lastword $(MAKEFILE_LIST)))module.mk

# What .venv is made with, and made anew if it is another than the one that is named.
PYTHON3 ?= python3
WHICH_PYTHON := -c 'import sys; print(sys.base_prefix, sys.version_info[:3])'
IS_OF_ANOTHER = $(if $(filter-out file,$(origin PYTHON3)),$(shell test ! -e $1/bin/python || \
	test "$$($1/bin/python $(WHICH_PYTHON) 2>/dev/null)" = "$$("$(PYTHON3)" $(WHICH_PYTHON))" || echo $1))

# The folder of the package in Python, where an example uses it: the requirements of a lock file with versions only name
# what registries have.
CLIENT ?=

VENV := .venv
PYTHON := $(VENV)/bin/python

# As the repository's Makefile does: CI has uv install what pip installs elsewhere.
ifeq ($(CI),true)
UV := ../../.venv/bin/uv
endif
install = { test -x "$(UV)" && "$(UV)" pip install --quiet --python $1/bin/python $2; } || $1/bin/python -m pip install --quiet $2
make_venv = { test -x "$(UV)" && "$(UV)" venv --quiet --seed --clear --python "$(PYTHON3)" $1; } || "$(PYTHON3)" -m venv --clear $1

# A program and its server, which end with make, whatever ends that.
BESIDE_SERVER = exec $(PYTHON) ../local_server.py --parent $$PPID

test: $(VENV)/.ready $(MODULE) ## the tests, with $SERVER
	$(PYTHON) -m pytest $(PYTEST_OPTIONS)

lock: $(VENV)/.ready ## requirements.txt, of requirements.in
	$(PYTHON) -m pip install --quiet pip-tools
	$(PYTHON) -m piptools compile --upgrade --strip-extras --no-header --no-emit-index-url \
		--no-emit-find-links --output-file requirements.txt requirements.in

$(if $(call IS_OF_ANOTHER,$(VENV)),.PHONY,NONE): $(VENV)/.ready
$(VENV)/.ready: requirements.txt Makefile
	$(call make_venv,$(VENV))
	$(call install,$(VENV),--requirement requirements.txt)
	$(if $(CLIENT),$(call install,$(VENV),--no-deps --editable $(CLIENT)))
	@touch $@
