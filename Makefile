# onepass: `make run` shows what it does, `make test` proves it. CMake does the work underneath.

MAKEFLAGS += --no-print-directory

PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
BUILD  := build/release
SOURCES = $(shell scripts/sources.sh)

.PHONY: all configure command run test check bench install format lint clean help
.DEFAULT_GOAL := all

all: configure ## build the library, the command, the examples and the tests
	cmake --build $(BUILD) -j$(JOBS)

configure:
	@scripts/setup.sh
	@mkdir -p build && cmake --preset release >build/configure.log || { cat build/configure.log; exit 1; }

command: configure
	cmake --build $(BUILD) -j$(JOBS) --target onepass_cli

run: command ## build the library and the command, then time the operators against a memory copy
	$(BUILD)/cli/onepass bench

test: ## run everything: tests, sanitizers, valgrind, fuzzing (STAGES="release tsan" for some)
	@scripts/test.sh $(STAGES)

check: command ## prove every operator right on this machine
	$(BUILD)/cli/onepass check

bench: run ## the same as run

install: all ## install to PREFIX (/usr/local)
	cmake --install $(BUILD) --prefix $(PREFIX)

format: ## format the C sources
	clang-format -i $(SOURCES)

lint: ## look for what compilers do not see, with the tools that are here
	clang-format --dry-run -Werror $(SOURCES)
	@scripts/lint.sh

clean: ## remove everything that was built
	rm -rf build

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
