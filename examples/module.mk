# The module that the examples' servers load: built, if it is not there yet.
BUILT := $(or $(CARGO_TARGET_DIR),$(abspath ../../target))/release/libredis_ratelimit.so
export RATELIMIT_MODULE ?= $(BUILT)

$(BUILT):
	$(MAKE) -C ../.. build
