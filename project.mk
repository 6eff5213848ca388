# Paths, the Python environment, the module and the server, for the Makefile of each folder, which includes this file by
# a relative path. Paths may contain spaces: they are quoted, and no absolute path is a target.
ROOT := $(dir $(lastword $(MAKEFILE_LIST)))
REPOSITORY := $(shell cd $(ROOT) && pwd)
TARGET := $(or $(CARGO_TARGET_DIR),target)
TARGET_PATH := $(if $(filter /%,$(TARGET)),,$(REPOSITORY)/)$(TARGET)
export RATELIMIT_MODULE ?= $(TARGET_PATH)/release/libredis_ratelimit.so

# Python that creates .venv. If another Python is named, .venv is created again.
PYTHON3 ?= $(or $(wildcard $(ROOT).venv/bin/python),python3)
PYTHON := $(ROOT).venv/bin/python

# Server to start or to test on; by default the first one found.
SERVER ?=
WITH_SERVER = SERVER="$$($(PYTHON) $(ROOT)tests/support/binaries.py --chosen)"

# Compiles a workspace with Clippy's lints and checks its documentation. `make TEST_WRAPPER='$(WITH_LINTS)'` tests the same build.
WITH_LINTS = RUSTC_WORKSPACE_WRAPPER='$(REPOSITORY)/scripts/lint_crate.sh' CLIPPY_ARGS=-Dwarnings

# bindgen needs libclang. Where the system has none, PyPI's is used, which comes without C headers.
export BINDGEN_EXTRA_CLANG_ARGS := $(or $(BINDGEN_EXTRA_CLANG_ARGS),-idirafter$(shell cc -print-file-name=include 2>/dev/null))
SYSTEM_LIBCLANG := $(or $(if $(PYPI_LIBCLANG),,$(LIBCLANG_PATH)),$(shell { PATH="$$PATH:/sbin" ldconfig -p; \
	ls "$$(llvm-config --libdir)"; } 2>/dev/null | grep -om1 'libclang\(-[0-9.]*\)\?\.so'))
ifeq ($(SYSTEM_LIBCLANG),)
LIBCLANG := python-build
export PYPI_LIBCLANG := yes
export LIBCLANG_PATH = $(REPOSITORY)/$(shell cd $(ROOT) && echo .venv/lib/python3*/site-packages/clang/native)
endif

.PHONY: server module needs-python
# Installs a group of pyproject.toml: make python-test
python-%: needs-python
	@"$(PYTHON3)" $(ROOT)scripts/packages.py $(ROOT).venv $*

needs-python:
	@PYTHON3="$(PYTHON3)" sh $(ROOT)scripts/needs.sh python

server: python-run
	@$(PYTHON) $(ROOT)tests/support/binaries.py --chosen >/dev/null

module:
	@test -e "$(RATELIMIT_MODULE)" || $(MAKE) -C $(ROOT). build
