.DEFAULT_GOAL := help
include project.mk

# Ports of `make run`, `make gateway`, `make console` and `make playground`.
PORT ?= 6379
GRPC ?= 8081
HTTP ?= 8080
CONSOLE ?= 8090

# Tools, each in a folder of its own with a pinned version, since a later version may need a later Rust.
CARGO_DEB := target/tools/cargo-deb@3.8.0/bin/cargo-deb
CARGO_DENY := target/tools/cargo-deny@0.20.2/bin/cargo-deny
CARGO_MUTANTS := target/tools/cargo-mutants@27.1.0/bin/cargo-mutants

.PHONY: help build run gateway console playground matrix soak fuzz corpora proxies mutants bare-check clients packages examples
.PHONY: test test-all test-build test-core test-first-server test-second-server test-third-server test-read-back test-clients test-scaffolding
.PHONY: lint lint-rust lint-python fmt msrv musl deny bench demo package tarball lock clean
help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 23

build: $(LIBCLANG) ## build the module, target/release/libredis_ratelimit.so
	@sh scripts/needs.sh
	cargo build --release --locked

RUN = $(PYTHON) scripts/run.py --port "$(PORT)" --server "$(SERVER)" "$(RATELIMIT_MODULE)"
run: python-run ## start a server with the module: make run [PORT=6379] [SERVER=redis-server]
	@$(RUN) --check
	@$(MAKE) --no-print-directory build
	@exec $(RUN) --parent $$PPID

gateway: python-gateway build ## start a server, the gateway and the console: make gateway [PORT=6379] [GRPC=8081] [HTTP=8080] [CONSOLE=8090]
	@$(RUN) --check
	$(MAKE) -C gateway build
	@exec $(PYTHON) scripts/gateway.py --port "$(PORT)" --grpc "$(GRPC)" --http "$(HTTP)" --console "$(CONSOLE)" \
		--server "$(SERVER)" "$(RATELIMIT_MODULE)" "$(TARGET_PATH)/release/ratelimit-gateway" \
		"$(TARGET_PATH)/release/ratelimit-console" --parent $$PPID

console: console-build ## show and change limits in a browser, on $RATELIMIT_CONSOLE_SERVER: make console [CONSOLE=8090]
	"$(TARGET_PATH)/release/ratelimit-console" serve --listen "127.0.0.1:$(CONSOLE)"

playground: console-build ## compare the algorithms in a browser, without a server: make playground [CONSOLE=8090]
	"$(TARGET_PATH)/release/ratelimit-console" playground --listen "127.0.0.1:$(CONSOLE)"

JOBS := $(MAKE) --no-print-directory --keep-going --jobs=3

test: python-test server ## test the core, and the module on one Redis and one Valkey: make test [SERVER=redis-server]
	@sh scripts/needs.sh
	$(JOBS) test-build test-core
	RATELIMIT_MODULE="$(TARGET_PATH)/test-release/libredis_ratelimit.so" $(JOBS) test-first-server test-second-server test-read-back

test-all: python-test python-console-test python-client-python python-deploy server ## test everything in this repository: make test-all [SERVER=redis-server]
	$(JOBS) --output-sync=target build test-core gateway-debug
	$(JOBS) test-first-server test-second-server test-clients bench-check gateway-short console-short test-third-server \
		test-read-back test-scaffolding

# Less link-time optimization than in the profile that is shipped makes the build faster.
test-build: $(LIBCLANG)
	cargo build --profile test-release --locked

# A quarter of the cases of proptest; `make soak` tries 2,560.
test-core: export PROPTEST_CASES ?= 64
test-core: $(LIBCLANG) ## run the tests that need no server, and build the module for debugging
	$(TEST_WRAPPER) cargo test --workspace --locked
	$(TEST_WRAPPER) cargo build --workspace --all-targets --locked
	cargo test --locked --manifest-path fuzz/Cargo.toml --target-dir "$(TARGET_PATH)"

EVERY_SERVER = $$(grep -l every_server tests/test_*.py)
test-first-server: python-test
	$(PYTHON) scripts/on_server.py 1 --ignore tests/scaffolding

test-second-server: python-test
	$(PYTHON) scripts/on_server.py 2 -m "every_server and not one_server" $(EVERY_SERVER)

test-third-server: python-test
	$(PYTHON) scripts/on_server.py 3 -m "every_server and not one_server and not every_kind" $(EVERY_SERVER)

# A debug build reads back every change; these tests make changes of all kinds.
READ_BACK := $(patsubst %,tests/test_%.py,ban clock effect effect_conversions effect_malformed effect_mutations keep lease_table \
	leases limit multi once options_everywhere several)
test-read-back: python-test
	RATELIMIT_MODULE="$(TARGET_PATH)/debug/libredis_ratelimit.so" $(PYTHON) scripts/on_server.py 1 $(READ_BACK)

test-scaffolding: python-test ## test the scripts, the test harness and client libraries
	$(PYTHON) scripts/on_server.py 1 tests/scaffolding

# npm builds the package in clients/js for the Express example first.
test-clients:
	$(JOBS) --output-sync=recurse -C examples; failed=$$?; $(JOBS) --output-sync=recurse -C clients && exit $$failed

matrix: python-test build ## run the suite on every server that the registries have, and print a table
	cargo build --locked
	$(PYTHON) scripts/matrix.py

soak: python-test server build ## run the long form of the tests that have one: make soak [SERVER=redis-server]
	PROPTEST_CASES=2560 cargo test --package ratelimit-core --locked
	RATELIMIT_LONG=1 $(PYTHON) scripts/on_server.py 1 --timeout 3600 --durations 10 $$(grep -l 'scaled(' tests/test_*.py)

# Payloads and effects are mutated with another seed each time, unless FUZZ_SEED is given.
FUZZ_MUTATIONS ?= 1000000
FUZZ_SEED ?= $(shell date +%s)
MUTATION_SETTINGS = RATELIMIT_MUTATIONS=$(FUZZ_MUTATIONS) RATELIMIT_SEED=$(FUZZ_SEED)
fuzz: python-test server build ## fuzz the core, then a server: make fuzz [FUZZ_SECONDS=60] [FUZZ_MUTATIONS=1000000]
	$(MAKE) -C fuzz
	$(MUTATION_SETTINGS) $(PYTHON) scripts/on_server.py 1 -rP -k mutated tests/test_corrupt_payloads.py tests/test_effect_mutations.py

corpora: ## pack the fewest inputs that cover as much as fuzz/corpus and what `make fuzz` has found since
	$(MAKE) -C fuzz corpora

proxies: gateway-proxies ## test the gateway with each proxy, and with faults: make proxies [SERVER=redis-server]

# 4,500 mutants, half a minute or more each. Status 3: a mutant made a test run into its timeout, which is a failure, too.
SHARD ?= 0/1
mutants: $(CARGO_MUTANTS) ## break the core in each small way, and see that its tests fail: make mutants [SHARD=0/20]
	CARGO_PROFILE_DEV_DEBUG=0 PROPTEST_CASES=64 $(CARGO_MUTANTS) mutants --package ratelimit-core --shard $(SHARD) --output target/mutants || test $$? -eq 3

bare-check: ## run README.md's commands for an ordinary account on bare Debian 12 and 13; takes root and debootstrap
	$(PYTHON3) scripts/bare_check.py

packages: ## test the packages for Python, Node.js, Rust, Ruby and PHP: make packages [SERVER=redis-server]
	$(MAKE) -C clients --keep-going
examples: ## test the example applications: make examples [SERVER=redis-server]
	$(MAKE) -C examples --keep-going

# Targets of other Makefiles, such as bench-check, package-rust, example-fastapi, gateway-test and console-package.
bench-%: ; $(MAKE) -C benches $*
package-%: ; $(MAKE) -C clients $*
example-%: ; $(MAKE) -C examples $*
gateway-%: ; $(MAKE) -C gateway $*
console-%: ; $(MAKE) -C console $*

clients: python-client-libraries server build ## test every client library of docs/clients.md: make clients [SERVER=redis-server]
	cd tests/clients/redis-rs && cargo clippy --locked --target-dir ../../../target/clients/redis-rs -- -D warnings
	SERVER="$(SERVER)" $(PYTHON) scripts/clients.py

# Packages outside of the workspace.
OWN_PACKAGES := fuzz benches/load $(addprefix tests/clients/,fred redis-rs valkey-glide-rs)
OLDEST_RUST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1.0/p' Cargo.toml)
lint: lint-rust gateway-lint lint-python ## check formatting, lints and documentation

lint-rust: $(LIBCLANG)
	cargo fmt --all --check
	for package in $(OWN_PACKAGES); do cargo fmt --check --manifest-path $$package/Cargo.toml || exit 1; done
	$(WITH_LINTS) cargo build --workspace --all-targets --locked
	cargo clippy --locked --manifest-path benches/load/Cargo.toml --target-dir target/load -- -D warnings

lint-python: python-lint
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	$(PYTHON) scripts/doc_comments.py
	! git log --since=2026-11-27T01:00Z --invert-grep --grep='^Merge ' --format=%s | grep '.\{61\}'

fmt: python-lint ## format everything
	cargo fmt --all
	for package in $(OWN_PACKAGES) gateway; do cargo fmt --all --manifest-path $$package/Cargo.toml || exit 1; done
	$(PYTHON) -m ruff check --fix && $(PYTHON) -m ruff format

msrv: export RUSTUP_HOME := $(CURDIR)/target/tools/rustup
msrv: $(LIBCLANG) ## build with the oldest Rust that Cargo.toml names
	rustup toolchain install --profile minimal --no-self-update $(OLDEST_RUST)
	cargo +$(OLDEST_RUST) build --workspace --locked --target-dir target/msrv

# On musl, the crate libc has other types. Nothing is linked, so any C compiler will do.
MUSL_TARGET := $(shell uname -m)-unknown-linux-musl
musl: $(LIBCLANG) ## check that the module compiles for musl
	rustup target add $(MUSL_TARGET)
	RUSTFLAGS="-C target-feature=-crt-static" CC_$(subst -,_,$(MUSL_TARGET))=cc cargo check --locked --target $(MUSL_TARGET)

deny: $(CARGO_DENY) ## check licences, advisories and sources of all crates; offline: make deny DENY="bans licenses sources"
	$(CARGO_DENY) --locked check $(or $(DENY),all)
	$(CARGO_DENY) --locked --manifest-path gateway/Cargo.toml --config gateway/deny.toml check $(or $(DENY),all)

bench: ## measure, and write docs/benchmarks.md: make bench [BENCH=--quick]
	$(MAKE) -C benches

PICTURES ?= target/demo
demo: python-charts server build ## draw every algorithm under the same traffic, and a scaled policy: make demo [PICTURES=docs]
	mkdir -p $(PICTURES)/charts
	$(PYTHON) scripts/demo.py $(PICTURES)/demo.png
	PYTHONPATH=clients/python/src $(PYTHON) examples/controller/chart.py $(PICTURES)/charts/controller.svg
	PYTHONPATH=clients/python/src $(PYTHON) examples/controller/fleet_chart.py $(PICTURES)/charts/fleet.svg

tarball: needs-python build ## make a tarball in target/package
	"$(PYTHON3)" scripts/package.py tarball "$(RATELIMIT_MODULE)"
package: tarball $(CARGO_DEB) ## make a tarball and a .deb in target/package: make package [MAINTAINER="name <address>"]
	"$(PYTHON3)" scripts/package.py deb $(CARGO_DEB) "$(MAINTAINER)"

UV := $(PYTHON) -m uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header
GROUPS := build run test lint charts gateway gateway-test deploy proxies console-test examples client-python client-libraries
lock: python-test ## pin the Python packages of pyproject.toml anew: make lock [UPGRADE=--upgrade]
	$(UV) $(UPGRADE) $(GROUPS:%=--group %) -o requirements.txt
	$(UV) $(UPGRADE) --group litellm -o requirements-litellm.txt

clean: ## remove all that was built and downloaded
	cargo clean
	rm -rf target gateway/target fuzz/target .venv .hypothesis .pytest_cache .ruff_cache
	find . -type d \( -name __pycache__ -o -name node_modules -o -name '.*_cache' -o -name .venv-litellm \) -prune -exec rm -r {} +
	rm -rf clients/*/dist clients/*/build examples/*/dist

$(CARGO_DEB) $(CARGO_DENY) $(CARGO_MUTANTS): target/tools/%:
	cargo install --locked --root target/tools/$(*D:/bin=) $(*D:/bin=)
