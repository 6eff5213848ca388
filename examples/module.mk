# The module that the examples' servers load: built, if it is not there yet. Its path may have spaces, which a target or
# what it needs has with a backslash each. A target folder that is relative is so to the repository.
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)
BUILT_IN := $(or $(CARGO_TARGET_DIR),target)
BUILT := $(if $(filter /%,$(BUILT_IN)),,$(abspath ../..)/)$(BUILT_IN)/release/libredis_ratelimit.so
export RATELIMIT_MODULE ?= $(BUILT)
MODULE := $(subst $(SPACE),\$(SPACE),$(RATELIMIT_MODULE))

$(subst $(SPACE),\$(SPACE),$(BUILT)):
	$(MAKE) -C ../.. build
