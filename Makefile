# `make run` builds Sluice and serves config/quickstart.yaml; `make test` runs every test.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

LIBRARIES := libnghttp2-dev libssl-dev libcurl4-openssl-dev libre2-dev libsqlite3-dev libyaml-dev libexpat1-dev pkg-config
TEST_TOOLS := curl nghttp2-client nghttp2-proxy openssl python3-venv libhttp-parser-dev
# The servers that stand for Google Cloud Storage and S3; Tests/System/upstreams.py and the Swift tests start them.
test capabilities sanitize: export SLUICE_UPSTREAMS ?= $(CURDIR)/.venv-upstreams
# The contract's tests run with these behind the gateway: UPSTREAMS="gcs-model fake-gcs-server seaweedfs moto rclone" are
# all there are, and take half an hour. gcp-storage-emulator, which knows no conditions, has the conformance suite alone.
UPSTREAMS ?= moto rclone
# How long `make fuzz` runs each target.
SECONDS_EACH ?= 60

.PHONY: run test capabilities lint bench fuzz sanitize clean libraries test-tools

run: libraries
	swift build -c release --product sluice
	exec .build/release/sluice serve --config config/quickstart.yaml

test: libraries test-tools .venv/installed .venv-upstreams/installed
	swift build --build-tests
	swift test --skip-build
	.venv/bin/pytest -q Tests/System
	for upstream in $(UPSTREAMS); do .venv/bin/pytest -q Tests/System --upstream $$upstream; done

# docs/capabilities.md, from a run of the conformance suite with every server.
capabilities: libraries test-tools .venv-upstreams/installed
	swift build --build-tests
	WRITE_CAPABILITIES=1 swift test --skip-build --filter CapabilitiesTests

lint:
	swift format lint --strict --recursive Package.swift Sources Tests Benchmarks Fuzz

bench: libraries
	Benchmarks/run

fuzz: libraries test-tools
	Fuzz/run $(SECONDS_EACH)

# Everything `make test` runs, under the address sanitizer and then under the thread sanitizer. Leaks are not looked for:
# those at the end of a test run are of Swift's own regular expressions and of XCTest.
sanitize: export ASAN_OPTIONS = detect_leaks=0
sanitize: libraries test-tools .venv/installed .venv-upstreams/installed
	for sanitizer in address thread; do \
	    scratch=.build-$${sanitizer:0:1}san; \
	    swift build --build-tests --sanitize=$$sanitizer --scratch-path $$scratch; \
	    swift test --skip-build --sanitize=$$sanitizer --scratch-path $$scratch; \
	    SANITIZER=$$sanitizer SLUICE=$$PWD/$$scratch/debug/sluice .venv/bin/pytest -q Tests/System; \
	done

clean:
	rm -rf .build .build-static .build-asan .build-tsan .build-fuzz .venv .venv-upstreams .bench

libraries:
	@command -v swift >/dev/null || { \
	    echo "The Swift toolchain (6.2 or newer) is not in PATH: https://www.swift.org/install" >&2; exit 1; }
	@.ci/install $(LIBRARIES)

test-tools:
	@.ci/install $(TEST_TOOLS)

# The Python peers of the system tests, and the servers, each in the versions of a file.
.venv/installed: Tests/System/requirements.txt
.venv-upstreams/installed: Tests/System/upstreams.txt
.venv/installed .venv-upstreams/installed:
	python3 -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@
