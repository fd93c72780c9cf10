# The project's two commands: `make demo` and `make test`. Both set everything up first, and reuse what is there.
# `make test-all` adds what is the same over another face, phase, number of hosts, version or library.
#
#   .venv/             the Python environment, from python/uv.lock
#   target/            the Rust build; the extension and the guard are copied into python/phalanx/
#   jvm/*/target/      the Scala build, against the Spark of .venv/; its jar is copied into python/phalanx/jars/
#   target/site/       the pages of docs/ with search, Scaladoc and rustdoc, by `make docs`; target/docs-venv/ has its tools
#   target/yarn/       Hadoop's daemons, which Maven brings for tests/clusters/test_yarn.py
#   target/bench-peers/  a Python environment for each peer of tests/bench/data.py, by its --setup-peers; bench-data/ its files
#   target/matrix/     a Python environment for each older Spark, of `make jars` and `make matrix`
#   target/tests/      how each part of the last `make test` or `make test-all` ended, for the table that it prints
#   ~/.cargo, ~/.cache/uv, ~/.m2   downloads, in their standard places

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo test test-all setup build jars wheel wheel-test link-check matrix check docs cargo-test rust-whole miri jvm-test python-test bench clean
.PHONY: libtorch check-rust check-others rust-test oldest-line every-line pytest-several pytest-beside pytest-connect
.PHONY: pytest-alone tests-begin

ROOT := $(CURDIR)
VENV := $(ROOT)/.venv
PYTHON := $(VENV)/bin/python
UV := $(VENV)/bin/uv
UV_VERSION := 0.13.8
export PYO3_PYTHON := $(PYTHON)
# An extension has the symbols of whatever Python loads it, and no library of the one that it was built with.
export PYO3_BUILD_EXTENSION_MODULE := 1
export PHALANX_ROOT := $(ROOT)
# What is compiled once needs no notes for the next time, which take a fifth of the time and a gigabyte.
ifdef CI
export CARGO_INCREMENTAL := 0
endif
# Images of containers have it. No import would leave its bytecode, and each rank compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE
# However quiet, Maven ends by resetting the terminal's colours, also of what is none.
export MAVEN_OPTS := $(MAVEN_OPTS) -Djansi.noreset=true
# Hosts without a resolvable name of their own still find the driver.
export SPARK_LOCAL_IP ?= 127.0.0.1

NATIVE := $(ROOT)/python/phalanx/_native.abi3.so
GUARD := $(ROOT)/python/phalanx/bin/phalanx-guard
JNI := $(ROOT)/target/release/libphalanx_jni.so
# The one place of the version; Maven is told it by a file, so that mvn by hand knows it, too.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
MAVEN_CONFIG := jvm/.mvn/maven.config
JAR := $(ROOT)/python/phalanx/jars/phalanx-spark_2.13-$(VERSION).jar
# The other Scala's, for Spark 3.5 as pip has it. Only `make jars` builds it: it needs that Spark.
JAR_2_12 := $(ROOT)/python/phalanx/jars/phalanx-spark_2.12-$(VERSION).jar
SPARK_3_5 := target/matrix/3.5
JVM_SOURCES := $(shell find jvm -name target -prune -o -type f -print)
PYTHON_SOURCES := $(shell find python/phalanx -name '*.py' -o -name '*.pyi')
# All crates at a time, so that each of their dependencies is compiled once; without the fuzz targets, which need libFuzzer.
CRATES := --workspace --exclude phalanx-fuzz
# rust/torch builds against the user's LIBTORCH, else against the libtorch of .venv's torch.
WITH_LIBTORCH := env PATH="$(VENV)/bin:$$PATH" $(if $(LIBTORCH),,LIBTORCH_USE_PYTORCH=1)
MVN := mvn --quiet --batch-mode --file jvm/pom.xml
PYTEST := $(PYTHON) -m pytest -q
# Tests in as many processes as there are processors; conftest.py says which go together. More of them take longer: on
# two processors 54 tests took 122 to 129 s in two processes, 144 in three and 163 in four, of which each left no time idle.
SEVERAL := -n $(shell nproc) --dist loadgroup --no-loadscope-reorder
CLASSES := $(ROOT)/target/spark-classes.jsa
# Which tests: those of `make test`, or what `make test-all` adds. tests/support/tiers.py has the rule.
TIER := not whole
# The part's name, in the table at the end.
ADDED := $(if $(filter not,$(TIER)),,-added)
RUFF_READS := python tests scripts docs/conf.py rust/torch conftest.py
DOCS := target/docs-venv
# Everything is read anew each time: Sphinx doesn't repeat the warnings of pages that it has kept.
SPHINX := $(DOCS)/bin/sphinx-build --quiet --fail-on-warning --fresh-env --conf-dir docs --doctree-dir target/docs-doctrees
RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml | grep -v ^rust/fuzz/) Cargo.toml Cargo.lock

demo: setup
	@$(PYTHON) python/examples/demo.py

# Two at a time, in this order: beside what Cargo compiles and runs, which doesn't keep two processors busy all the time,
# what mostly waits or takes one; then pytest.
test: setup tests-begin
	@$(MAKE) --no-print-directory --jobs=2 rust-test check-others $(CLASSES) jars link-check jvm-test pytest-several pytest-beside
	@$(MAKE) --no-print-directory pytest-alone
	@scripts/tests_told.py

# What `make test` has, and then the rest.
test-all: test
	@$(MAKE) --no-print-directory --jobs=2 miri rust-whole jvm-test pytest-several pytest-beside TIER=whole
	@$(MAKE) --no-print-directory pytest-alone TIER=whole
	@$(MAKE) --no-print-directory wheel
	@scripts/tests_told.py

tests-begin:
	@rm -rf target/tests && mkdir -p target/tests && date +%s > target/tests/begin

rust-test:
	@$(MAKE) --no-print-directory check-rust
	@$(MAKE) --no-print-directory cargo-test

# Packages are fetched while Rust compiles.
setup:
	@$(MAKE) --no-print-directory --silent $(if $(findstring jobserver,$(MAKEFLAGS)),,--jobs=2) $(VENV)/.ready build

# Says what is missing before anything is fetched.
$(UV): scripts/preflight
	@scripts/preflight
	@test -x $(VENV)/bin/pip || python3 -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@

$(VENV)/.ready: python/uv.lock python/pyproject.toml $(UV)
	@echo "setup: Python packages (torch is large: minutes the first time)"
	@UV_PROJECT_ENVIRONMENT=$(VENV) $(UV) sync --project python --frozen --quiet --inexact --python $(PYTHON)
	@echo $(ROOT)/python > $$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/phalanx-dev.pth
# What every run imports is compiled here; what else there is, when somebody imports it.
	@$(PYTHON) -c 'import numpy, cloudpickle, pyspark.sql, torch._dynamo'
	@touch $@

build: $(NATIVE) $(GUARD) $(JAR)

$(NATIVE) $(GUARD) $(JNI) &: $(RUST_SOURCES) | $(UV)
	@echo "setup: Rust"
	@cargo build --quiet --release -p phalanx-python -p phalanx-jni -p phalanx-supervisor
	@touch $(JNI)
	@mkdir -p $(dir $(GUARD))
	@install -m 755 target/release/phalanx-guard $(GUARD)
	@install -m 755 target/release/lib_native.so $(NATIVE)

$(MAVEN_CONFIG): Cargo.toml
	@echo "-Drevision=$(VERSION)" > $@

$(JAR): $(NATIVE) $(GUARD) $(JNI) $(MAVEN_CONFIG) $(JVM_SOURCES) $(PYTHON_SOURCES) | $(VENV)/.ready
	@echo "setup: Scala"
	@$(MVN) package -DskipTests
	@mkdir -p $(dir $@)
	@rm -f $(dir $@)phalanx-spark_2.13-*.jar
	@install -m 644 jvm/spark/target/$(notdir $@) $@

jars: $(JAR) $(JAR_2_12)

$(JAR_2_12): $(NATIVE) $(GUARD) $(JNI) $(MAVEN_CONFIG) $(JVM_SOURCES) $(PYTHON_SOURCES) | $(SPARK_3_5)/.pyspark
	@echo "setup: Scala 2.12"
	@$(MVN) package -Pscala-2.12 -DskipTests -Dmaven.test.skip=true --projects .,spark \
	  -Dspark.home=$$(echo $(ROOT)/$(SPARK_3_5)/lib/python*/site-packages/pyspark)
	@rm -f $(dir $@)phalanx-spark_2.12-*.jar
	@install -m 644 jvm/spark/target/scala-2.12/$(notdir $@) $@

$(SPARK_3_5)/.pyspark: scripts/spark_lines.py | $(VENV)/.ready
	@scripts/matrix.py --setup 3.5
	@touch $@

$(DOCS)/.ready: python/uv.lock python/pyproject.toml | $(VENV)/.ready
	@echo "setup: Sphinx"
	@UV_PROJECT_ENVIRONMENT=$(ROOT)/$(DOCS) $(UV) sync --project python --frozen --quiet --only-group docs --python $(PYTHON)
	@touch $@

# The site, as files to open or to serve; it needs no network.
docs: setup $(DOCS)/.ready
	$(SPHINX) --builder html . target/site
	cargo doc --quiet --no-deps
	$(MVN) validate scala:doc --projects .,spark
	@rm -rf target/site/rust target/site/scala
	@cp -r target/doc target/site/rust
	@cp -r jvm/spark/target/site/scaladocs target/site/scala
	@ls target/site/rust/phalanx_job/index.html target/site/scala/index.html > /dev/null
	@echo "docs: target/site/index.html"

# What a release is: the wheel, and a Maven repository of the jars; then what strangers do with both. docs/release.md.
WHEELS = $(wildcard target/wheel/phalanx-$(VERSION)-*.whl)
wheel: setup jars
	scripts/wheel.py x86_64
	@$(MAKE) --no-print-directory wheel-test

wheel-test:
	scripts/maven_repository.py $(WHEELS)
	PHALANX_WHEEL=$(filter %x86_64.whl,$(WHEELS)) $(PYTEST) \
	  tests/e2e/test_wheel.py tests/e2e/test_readme.py tests/e2e/test_demo.py tests/release

# Whether each version of Spark has what the jars refer to; no Spark is started.
link-check: $(JAR)
	@scripts/check_links.py

# What has to work on every line of Spark, on each of them: half an hour. docs/versions.md has what came of it.
matrix: setup jars
	@scripts/matrix.py $(LINES) $(if $(JAVA),--java=$(JAVA))

# The least of it, by one session of the oldest line of Spark.
oldest-line: setup jars
	@scripts/part oldest-line scripts/matrix.py --once 3.5

# The least of it, on each line of Spark but the newest.
every-line: setup jars
	@scripts/part every-line scripts/matrix.py --quick --older

# Formatters and linters as checks, and the rules of the house.
check: setup
	@$(MAKE) --no-print-directory --jobs=2 check-rust check-others

check-rust: libtorch
	cargo fmt --all --check
	$(WITH_LIBTORCH) cargo clippy --quiet $(CRATES) --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(WITH_LIBTORCH) cargo doc --quiet $(CRATES) --no-deps

# Says in a sentence that libtorch doesn't fit, before the build script of torch-sys does in its own words.
libtorch: $(VENV)/.ready
	@mkdir -p target
	@env -u MAKEFLAGS -u MFLAGS rustc --edition 2024 -o target/libtorch-check rust/torch/build.rs
	@$(WITH_LIBTORCH) target/libtorch-check > /dev/null

check-others: $(DOCS)/.ready
	scripts/check_house.py
	$(VENV)/bin/ruff check --config python/pyproject.toml $(RUFF_READS)
	$(VENV)/bin/ruff format --check --config python/pyproject.toml $(RUFF_READS)
	@if [ -x $(DOCS)/bin/sphinx-build ]; then set -x; $(SPHINX) --builder dummy . target/docs-dummy; \
	else echo "docs: links are not checked; Sphinx needs Python 3.11 or later"; fi
	$(MVN) spotless:check
	cd python && $(VENV)/bin/mypy phalanx
# The stub by itself: it needs nothing of the package, of which mypy would read torch's types, too.
	cd python && MYPYPATH=. $(VENV)/bin/stubtest --mypy-config-file <(printf '[mypy]\nfollow_imports = skip\n') phalanx._native

# Most of them wait for a time to pass.
cargo-test: setup libtorch
	@RUST_TEST_THREADS=$$(( 2 * $$(nproc) )) $(WITH_LIBTORCH) scripts/part rust scripts/cargo_test.py $(CRATES)
	env -u MAKEFLAGS -u MFLAGS $(WITH_LIBTORCH) cargo test --quiet $(CRATES) --doc

# Each state of a node with each fault: 2 minutes.
rust-whole: setup
	cargo test --quiet -p phalanx-job --test states -- --ignored

# Undefined behaviour in the unsafe code that makes no system call, where nightly Rust has miri.
MIRI_TESTS := kernels call dtype failure topology intra_host::tests inter_host::tree
miri: setup
	@if cargo +nightly miri --version > /dev/null 2>&1; then \
	  MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 \
	    cargo +nightly miri test --quiet -p phalanx-collective --lib -- $(MIRI_TESTS); \
	else echo "miri: left out; rustup toolchain install nightly -c miri -c rust-src brings it"; fi

jvm-test: setup $(CLASSES)
	@scripts/part scala$(ADDED) scripts/scala_twice $(MVN) test -DtagsTo$(if $(ADDED),Include,Exclude)=whole

# Several processes run the tests, and beside them one those over Spark Connect, and then those on older lines of Spark.
# Those that assert how long something takes have the machine to themselves.
python-test: setup tests-begin
	@$(MAKE) --no-print-directory --jobs=2 pytest-several pytest-beside
	@$(MAKE) --no-print-directory pytest-alone
	@scripts/tests_told.py

# Not both at a time: the Connect server that pyspark starts has one port, 15002, on each line.
pytest-beside: pytest-connect
	@$(MAKE) --no-print-directory $(if $(ADDED),every-line,oldest-line)

pytest-several: setup jars $(CLASSES)
	@scripts/part pytest$(ADDED) scripts/pytest_twice $(PYTEST) $(SEVERAL) -m "$(TIER) and not alone"

pytest-connect: setup jars $(CLASSES)
	@scripts/part connect$(ADDED) scripts/pytest_twice $(PYTEST) tests --connect -m "$(TIER) and not alone"

pytest-alone: setup jars $(CLASSES)
	@scripts/part alone$(ADDED) scripts/pytest_twice $(PYTEST) -m "$(TIER) and alone"

# Spark's classes as the tests' JVMs want them; tests/support/jvm.py says what that is worth.
$(CLASSES): $(VENV)/.ready scripts/archive_classes.py tests/support/jvm.py
	@echo "setup: an archive of Spark's classes"
	@$(PYTHON) scripts/archive_classes.py $@ > $@.log 2>&1 || { cat $@.log; exit 1; }

# Side by side with the peers; needs a quiet machine. `make bench QUICK=--quick` ends within minutes.
bench: setup
	@for b in store hub scale seats see logs launch first_run integrations data collective allreduce ddp elastic abort predict; do $(PYTHON) tests/bench/$$b.py $(QUICK); done

clean:
	rm -rf target jvm/target jvm/*/target $(NATIVE) python/phalanx/bin python/phalanx/jars
