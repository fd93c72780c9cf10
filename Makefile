# The project's two commands: `make demo` and `make test`. Both set everything up first, and reuse what is there.
#
#   .venv/             the Python environment, from python/uv.lock
#   target/            the Rust build; the extension and the guard are copied into python/phalanx/
#   jvm/*/target/      the Scala build, against the Spark of .venv/; its jar is copied into python/phalanx/jars/
#   ~/.cargo, ~/.cache/uv, ~/.m2   downloads, in their standard places

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo test setup build check cargo-test torch-test jvm-test python-test bench clean

ROOT := $(CURDIR)
VENV := $(ROOT)/.venv
PYTHON := $(VENV)/bin/python
UV_VERSION := 0.13.8
export PYO3_PYTHON := $(PYTHON)
export PHALANX_ROOT := $(ROOT)
# Hosts without a resolvable name of their own still find the driver.
export SPARK_LOCAL_IP ?= 127.0.0.1

NATIVE := $(ROOT)/python/phalanx/_native.abi3.so
GUARD := $(ROOT)/python/phalanx/bin/phalanx-guard
JNI := $(ROOT)/target/release/libphalanx_jni.so
JAR := $(ROOT)/python/phalanx/jars/phalanx-spark_2.13-0.1.0.jar
JVM_SOURCES := $(shell find jvm -name target -prune -o -type f -print)
PYTHON_SOURCES := $(wildcard python/phalanx/*.py python/phalanx/*.pyi)
# rust/torch builds against the user's LIBTORCH, else against the libtorch of .venv's torch.
WITH_LIBTORCH := env PATH="$(VENV)/bin:$$PATH" $(if $(LIBTORCH),,LIBTORCH_USE_PYTORCH=1)
MVN := mvn --quiet --batch-mode --file jvm/pom.xml
RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml | grep -v /fuzz/) Cargo.toml Cargo.lock

demo: setup
	@$(PYTHON) python/examples/demo.py

test: setup check cargo-test torch-test jvm-test python-test

setup: $(VENV)/.ready build

# Says what is missing before anything is fetched.
$(VENV)/.ready: python/uv.lock python/pyproject.toml scripts/preflight
	@scripts/preflight
	@test -x $(VENV)/bin/pip || python3 -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@echo "setup: Python packages (torch is large: minutes the first time)"
	@UV_PROJECT_ENVIRONMENT=$(VENV) $(VENV)/bin/uv sync --project python --frozen --quiet --inexact --compile-bytecode --python $(PYTHON)
	@echo $(ROOT)/python > $$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/phalanx-dev.pth
	@touch $@

build: $(NATIVE) $(GUARD) $(JAR)

$(NATIVE) $(GUARD) $(JNI) &: $(RUST_SOURCES) | $(VENV)/.ready
	@echo "setup: Rust"
	@cargo build --quiet --release -p phalanx-python -p phalanx-jni -p phalanx-supervisor
	@touch $(JNI)
	@mkdir -p $(dir $(GUARD))
	@install -m 755 target/release/phalanx-guard $(GUARD)
	@install -m 755 target/release/lib_native.so $(NATIVE)

$(JAR): $(NATIVE) $(GUARD) $(JNI) $(JVM_SOURCES) $(PYTHON_SOURCES)
	@echo "setup: Scala"
	@$(MVN) package -DskipTests
	@mkdir -p $(dir $@)
	@install -m 644 jvm/spark/target/$(notdir $@) $@

# Formatters and linters as checks.
check: setup
	cargo fmt --all --check
	cargo clippy --quiet --all-targets -- -D warnings
	$(VENV)/bin/ruff check --config python/pyproject.toml python tests rust/torch
	$(VENV)/bin/ruff format --check --config python/pyproject.toml python tests rust/torch
	$(MVN) spotless:check
	cd python && $(VENV)/bin/mypy phalanx && MYPYPATH=. $(VENV)/bin/stubtest phalanx._native

cargo-test: setup
	cargo test --quiet

torch-test: setup
	@mkdir -p target
	@rustc --edition 2024 -o target/libtorch-check rust/torch/build.rs
# Says in a sentence that libtorch doesn't fit, before the build script of torch-sys does in its own words.
	@$(WITH_LIBTORCH) target/libtorch-check > /dev/null
	$(WITH_LIBTORCH) cargo clippy --quiet -p phalanx-torch --all-targets -- -D warnings
	$(WITH_LIBTORCH) cargo test --quiet -p phalanx-torch

jvm-test: setup
	$(MVN) test

python-test: setup
	$(PYTHON) -m pytest -q python/tests
	$(PYTHON) -m pytest -q tests
	$(PYTHON) -m pytest -q tests --connect

# Side by side with the peers; needs a quiet machine. `make bench QUICK=--quick` ends within minutes.
bench: setup
	@for b in store logs launch collective allreduce ddp; do $(PYTHON) tests/bench/$$b.py $(QUICK); done

clean:
	rm -rf target jvm/target jvm/*/target $(NATIVE) python/phalanx/bin python/phalanx/jars
