# `make run` builds Sluice and serves config/quickstart.yaml; `make test` runs every test.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

LIBRARIES := libnghttp2-dev libssl-dev libcurl4-openssl-dev libre2-dev libsqlite3-dev libyaml-dev libexpat1-dev pkg-config
TEST_TOOLS := curl iproute2 nghttp2-client nghttp2-proxy openssl python3-venv libhttp-parser-dev libz3-4
# A page in it uploads in Tests/EndToEnd/uploads/test_browser.py.
BROWSER := chromium
# Swift would begin all tests at once: connections stay idle for longer than their limit while a thousand others run.
export SWT_EXPERIMENTAL_MAXIMUM_PARALLELIZATION_WIDTH ?= 16
# The test servers for Google Cloud Storage and S3. Tests/EndToEnd/support/upstreams.py and the Swift tests start them.
test test-release soak capabilities sanitize: export SLUICE_UPSTREAMS ?= $(CURDIR)/.venv-upstreams
# The servers behind the gateway in the contract tests. All possible ones: UPSTREAMS="gcs-model fake-gcs-server
# seaweedfs moto rclone". gcp-storage-emulator has no conditional requests, so only the conformance suite uses it.
UPSTREAMS ?= moto rclone
COMPLETIONS := bash-completion/completions zsh/vendor-completions fish/vendor_completions.d
# The gateway, and the client's verbs.
PROGRAMS := sluice sluice-client
# How long `make fuzz` runs each target.
SECONDS_EACH ?= 60
# The number of test files that run in parallel follows: most tests wait for peers. Memory tests run separately.
PYTEST := .venv/bin/pytest -q --dist loadfile --no-loadscope-reorder -n
MEMORY_TESTS := Tests/EndToEnd/memory
# The end-to-end tests in `make check`: each kind of request over each protocol, the rules, the command line.
CHECKED := $(addprefix Tests/EndToEnd/,contract/test_objects.py contract/test_conditions.py rules/test_rules_cli.py \
	operation/test_cli.py)
# The duration of `make soak`.
SOAK_SECONDS ?= 3600
# The options of everything that is released or measured. Debug builds check that accesses to the same memory do not overlap
# (exclusivity); a release build has only the compiler's checks. Plain `swift build -c release` works too: with it a small
# request takes 13 to 22 % more instructions.
RELEASE := -c release -Xswiftc -enforce-exclusivity=unchecked
# Tests import internal declarations, which a release build permits only with this flag.
RELEASE_TEST_FLAGS := $(RELEASE) --scratch-path .build-release-tests -Xswiftc -enable-testing

# The client's tests watch transfers while they run. Beside thousands of tests that compute on the threads of Swift's tasks
# they would come too late, so they run after them, in a process of their own.
CLIENT_TESTS := SluiceStorageTests

# What `make dist` builds knows its version, commit and date: `sluice --version`. It has RE2 in it, because each release of
# Debian has another shared one, and so a package made on Debian 12 installs on Debian 13 too. Where there is no static RE2, or
# one that needs more libraries, `make deb SLUICE_RE2=re2` takes the shared one.
SLUICE_RE2 ?= :libre2.a
# Its licences, which belong to every program that contains it.
RE2_NOTICES := /usr/share/doc/libre2-dev/copyright
VERSION := $(shell sed -n 's/.*version: "\([0-9.]*\)", commit.*/\1/p' Sources/Telemetry/BuildInfo.swift)
STAMP = SLUICE_BUILD_COMMIT=$$(git describe --always --dirty --exclude='*' --abbrev=12) \
	SLUICE_BUILD_DATE=$$(git log -1 --format=%cs) SLUICE_RE2=$(SLUICE_RE2)
STATIC := $(RELEASE) --static-swift-stdlib --scratch-path .build-static
PACKAGE_TOOLS := binutils dpkg-dev lintian python3
# Where `make install` puts the program and what belongs to it. DESTDIR is for packagers.
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
DOCUMENTS = $(DESTDIR)$(PREFIX)/share/doc/sluice
# The programs that `make install` installs; `make dist` makes them.
DIST ?= .dist
dist deb test-package: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)

.PHONY: run test check test-release build-release-tests soak capabilities lint bench fuzz sanitize clean libraries test-tools browser package-tools
.PHONY: dist deb install test-package alerts

# CI sets RUN_FLAGS, so that it need not build again.
run: RUN_FLAGS ?= $(RELEASE)
run: libraries
	swift build $(RUN_FLAGS) --product sluice
	exec "$$(swift build $(RUN_FLAGS) --show-bin-path)/sluice" serve --config config/quickstart.yaml

test: libraries test-tools browser .venv/installed .venv-upstreams/installed
	@echo "All tests, about half an hour on two processors: builds for debugging and for release (6 minutes), Swift tests"
	@echo "of both (4), tests of the program over real connections (4), its contract with servers of S3 (3), memory (5)."
	swift build --build-tests
	@Tests/quiet .build/swift-tests.log swift test --skip-build --skip $(CLIENT_TESTS)
	@Tests/quiet .build/client-tests.log swift test --skip-build --filter $(CLIENT_TESTS)
	$(PYTEST) 4 --ignore $(MEMORY_TESTS) Tests/EndToEnd
	for upstream in $(UPSTREAMS); do $(PYTEST) 4 --ignore $(MEMORY_TESTS) Tests/EndToEnd --upstream $$upstream; done
	$(PYTEST) 4 Tests/EndToEnd/firebase Tests/EndToEnd/s3 --upstream gcs-model
	$(MAKE) --no-print-directory test-release

# For use during development: at most five minutes, most of them for the first build.
check: libraries test-tools .venv/installed
	swift build --build-tests
	@env -u SLUICE_UPSTREAMS Tests/quiet .build/swift-tests.log swift test --skip-build --skip $(CLIENT_TESTS)
	@Tests/quiet .build/client-tests.log swift test --skip-build --filter $(CLIENT_TESTS)
	$(PYTEST) 4 $(CHECKED)

# Runs the Swift tests in release configuration too, because undefined behaviour may go unnoticed in a debug build. The
# memory tests run last; their limits are those of a release build.
test-release: libraries test-tools .venv/installed .venv-upstreams/installed build-release-tests
	@env -u SLUICE_UPSTREAMS Tests/quiet .build-release-tests/swift-tests.log \
		swift test --skip-build --skip $(CLIENT_TESTS) $(RELEASE_TEST_FLAGS)
	@Tests/quiet .build-release-tests/client-tests.log \
		swift test --skip-build --filter $(CLIENT_TESTS) $(RELEASE_TEST_FLAGS)
	SLUICE=$$(swift build --show-bin-path $(RELEASE_TEST_FLAGS))/sluice $(PYTEST) 2 $(MEMORY_TESTS)

build-release-tests: libraries
	swift build --build-tests $(RELEASE_TEST_FLAGS)

# Runs an hour of mixed load and plots the resident memory: .soak/memory.svg.
soak: libraries test-tools .venv/installed .venv-upstreams/installed
	swift build $(RELEASE) --product sluice
	SLUICE=$$(swift build $(RELEASE) --show-bin-path)/sluice .venv/bin/python Tests/EndToEnd/support/soak.py --seconds $(SOAK_SECONDS)

# Writes docs/capabilities.md from a run of the conformance suite with every server.
capabilities: libraries test-tools .venv-upstreams/installed
	swift build --build-tests
	WRITE_CAPABILITIES=1 swift test --skip-build --filter CapabilitiesTests

# A program in .build/release, such as release-RulesBenchmark; and one in .build-static/release that needs no Swift.
release-%:
	swift build $(RELEASE) --product $*
static-%:
	swift build $(STATIC) --product $*

# What is released, in .dist: programs that need no Swift, its tarball, debug symbols, SBOM and SHA-256 sums.
dist: libraries package-tools
	mkdir -p .dist
	for program in $(PROGRAMS); do \
	    env $(STAMP) $(MAKE) --no-print-directory static-$$program; \
	    objcopy --only-keep-debug --compress-debug-sections .build-static/release/$$program .dist/$$program.debug; \
	    (cd .dist && objcopy --strip-all --remove-section=.comment --add-gnu-debuglink=$$program.debug \
	        ../.build-static/release/$$program $$program); \
	done
	deploy/package/dist $(VERSION)

# A package for `apt install ./sluice_….deb`. lintian may have no errors.
deb: dist
	deploy/package/deb $(VERSION)
	lintian --fail-on error --tag-display-limit 0 .dist/*.deb

# Installs the deb in a Debian 12 and a Debian 13 without Swift, serves and purges it. Needs root and a Debian mirror.
test-package: deb
	for release in bookworm trixie; do deploy/package/test $$release; done

# Builds first if nothing has been built; so a second `sudo make install` needs no toolchain. A configuration that exists
# stays. The pages are installed without the repository around them, so their links are changed to what is installed.
install: $(DIST)/sluice
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/bin $(addprefix $(DIST)/,$(PROGRAMS))
	for file in sluice.yaml storage.rules; do \
	    test -e $(DESTDIR)$(SYSCONFDIR)/sluice/$$file || \
	        install -D -m 0644 deploy/$$file $(DESTDIR)$(SYSCONFDIR)/sluice/$$file; done
	install -d $(DESTDIR)$(UNITDIR)
	for unit in sluice.service sluice.socket; do \
	    sed 's|/usr/local/|$(PREFIX)/|' deploy/$$unit >$(DESTDIR)$(UNITDIR)/$$unit; done
	install -D -m 0644 deploy/sluice.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/sluice.conf
	install -D -m 0644 -t $(DOCUMENTS) README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE
	! test -e $(RE2_NOTICES) || install -m 0644 $(RE2_NOTICES) $(DOCUMENTS)/RE2.copyright
	install -D -m 0644 -t $(DOCUMENTS)/docs docs/*.md Sources/Gateway/NativeAPI/openapi.yaml
	install -D -m 0644 -t $(DOCUMENTS)/docs/images docs/images/*.png
	for target in SecurityRules SluiceStorage; do \
	    install -D -m 0644 -t $(DOCUMENTS)/docs/$$target Sources/$$target/$$target.docc/*.md; done
	install -D -m 0644 -t $(DOCUMENTS)/examples config/* deploy/README.md
	cd deploy && find chart kubernetes grafana/alerts.yaml grafana/dashboard.json -type f \
	    -exec install -D -m 0644 {} $(abspath $(DOCUMENTS))/examples/{} \;
	sed -E -i -e 's#\]\(((\.\./)*)(config|deploy)/#](\1examples/#g' \
	    -e 's#\]\(((\.\./)*)Sources/Gateway/NativeAPI/#](\1docs/#g' \
	    -e 's#\]\(((\.\./)*)Sources/(\w+)/\w+\.docc/#](\1docs/\3/#g' \
	    $(DOCUMENTS)/*.md $(DOCUMENTS)/docs/*.md $(DOCUMENTS)/examples/*.md
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,man/man1 $(COMPLETIONS))
	$(DIST)/sluice manual >$(DESTDIR)$(PREFIX)/share/man/man1/sluice.1
	install -m 0644 deploy/sluice-client.1 $(DESTDIR)$(PREFIX)/share/man/man1
	$(DIST)/sluice --generate-completion-script bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/sluice
	$(DIST)/sluice --generate-completion-script zsh >$(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_sluice
	$(DIST)/sluice --generate-completion-script fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/sluice.fish

# Checks the alert rules, and whether they fire on the series of a test.
alerts:
	.ci/promtool check rules deploy/grafana/alerts.yaml
	.ci/promtool test rules deploy/grafana/alerts.test.yaml

.dist/sluice:
	$(MAKE) dist

lint:
	swift format lint --strict --recursive Package.swift Sources Tests Benchmarks Examples Fuzz

bench: libraries
	Benchmarks/run

fuzz: libraries test-tools
	Fuzz/run $(SECONDS_EACH)

# Runs the tests with the address sanitizer, then with the thread sanitizer. Leak detection is off: the leaks at the end
# of a test run are in Swift's regular expressions and in XCTest. Too large an allocation gives NULL, as without them.
# At most 32 MiB of freed memory are kept, because tests compare the memory of a process before and after.
sanitize: export ASAN_OPTIONS = detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=32
sanitize: export TSAN_OPTIONS = allocator_may_return_null=1
sanitize: libraries test-tools browser .venv/installed .venv-upstreams/installed
	for sanitizer in address thread; do \
	    scratch=.build-$${sanitizer:0:1}san; \
	    swift build --build-tests --sanitize=$$sanitizer --scratch-path $$scratch; \
	    for tests in "--skip $(CLIENT_TESTS)" "--filter $(CLIENT_TESTS)"; do \
	        swift test --skip-build $$tests --sanitize=$$sanitizer --scratch-path $$scratch; \
	    done; \
	    SANITIZER=$$sanitizer SLUICE=$$PWD/$$scratch/debug/sluice .venv/bin/pytest -q Tests/EndToEnd; \
	done

clean:
	rm -rf .build .build-release-tests .build-static .build-asan .build-tsan .build-fuzz .venv .venv-upstreams .bench .soak .dist .promtool

libraries:
	@command -v swift >/dev/null || { \
	    echo "The Swift toolchain (6.2 or newer) is not in PATH: https://www.swift.org/install" >&2; exit 1; }
	@.ci/install $(LIBRARIES)

test-tools:
	@.ci/install $(TEST_TOOLS)

package-tools:
	@.ci/install $(PACKAGE_TOOLS)

browser:
	@.ci/install $(BROWSER)

# The Python packages of the end-to-end tests, and the test servers. Each file pins their versions.
.venv/installed: Tests/EndToEnd/requirements.txt
.venv-upstreams/installed: Tests/EndToEnd/upstreams.txt
.venv/installed .venv-upstreams/installed:
	python3 -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@
