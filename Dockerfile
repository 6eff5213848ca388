# Valkey with the module: docs/docker.md.

# The compiler that rust-toolchain.toml names. That file is not copied: rustup would get the linters in it as well.
FROM rust:1.95.0-slim-trixie AS build
RUN apt-get update && \
    apt-get install --yes --no-install-recommends libclang1 && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
COPY core core
COPY src src
# libclang comes without C headers: it is shown the compiler's.
RUN BINDGEN_EXTRA_CLANG_ARGS="-idirafter$(cc -print-file-name=include)" \
    cargo build --release --locked

FROM valkey/valkey:9.1.2-trixie
COPY --from=build /build/target/release/libredis_ratelimit.so /usr/local/lib/
COPY docker/valkey.conf /usr/local/etc/valkey/
# The image's user valkey, as numbers, since Kubernetes' runAsNonRoot knows no names.
USER 999:999
# With a password it answers NOAUTH.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD valkey-cli ping | grep -q -e PONG -e NOAUTH
# Not CMD: `docker run IMAGE --maxmemory 1gb` would then leave the configuration out, and with it the module.
ENTRYPOINT ["docker-entrypoint.sh", "valkey-server", "/usr/local/etc/valkey/valkey.conf"]
