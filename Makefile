# Every target works on a fresh machine with Go, node and npm: what it needs
# beyond that it installs into .tools/ (git-ignored) at pinned versions.

GO            ?= go
TOOLS         := $(CURDIR)/.tools
GOLANGCI      := $(TOOLS)/golangci-lint-v2.15.0
GOVULNCHECK   := $(TOOLS)/govulncheck-v1.9.0
PROVIDERS     := driver/testdata/providers
CODEX_BIN     := $(PROVIDERS)/node_modules/codex-linux/vendor/x86_64-unknown-linux-musl/bin/codex
LDFLAGS       := -s -w

# The race run: packages that are quick under the detector. The others start
# hundreds of processes; their code runs here through these too.
RACE_PKGS     := ./crypto/... ./wire/... ./driver/jsonrpc/... ./driver/scripted/... \
	./runnerd/redact/... ./runnerd/seglog/... ./runnerd/journal/... ./runnerd/link/... ./runnerd/executor/... \
	./controlplane/authority/... ./controlplane/session/... ./controlplane/gateway/... ./controlplane/api/... \
	./controlplane/client/... ./controlplane/runs/... ./controlplane/datadir/... ./cmd/internal/...

.PHONY: build test race lint vuln tidy bench demo providers tools clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/bowline ./cmd/bowline
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/runnerd ./cmd/runnerd

# The README's test command. It installs the pinned Codex binary through npm;
# without npm (or offline) it says what is skipped and runs the rest. CI sets
# BOWLINE_REQUIRE_CODEX=1, which turns that skip into a failure.
test: providers
	CGO_ENABLED=0 $(GO) test -timeout 20m ./...

providers:
	@if [ -x "$(CODEX_BIN)" ]; then :; \
	elif ! command -v npm >/dev/null 2>&1; then \
	  echo "SKIPPED: npm is not installed, the tests with the real Codex binary do not run" >&2; \
	  [ "$$BOWLINE_REQUIRE_CODEX" != 1 ]; \
	elif ! (cd $(PROVIDERS) && npm ci --no-audit --no-fund --loglevel=error); then \
	  echo "SKIPPED: npm ci failed in $(PROVIDERS), the tests with the real Codex binary do not run" >&2; \
	  [ "$$BOWLINE_REQUIRE_CODEX" != 1 ]; \
	fi

race:
	$(GO) test -race -timeout 15m $(RACE_PKGS)

$(GOLANGCI):
	GOBIN=$(TOOLS)/build $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	mv $(TOOLS)/build/golangci-lint $@

$(GOVULNCHECK):
	GOBIN=$(TOOLS)/build $(GO) install golang.org/x/vuln/cmd/govulncheck@v1.9.0
	mv $(TOOLS)/build/govulncheck $@

tools: $(GOLANGCI) $(GOVULNCHECK)

lint: $(GOLANGCI)
	$(GO) vet ./...
	$(GOLANGCI) run ./...

tidy:
	$(GO) mod tidy -diff
	cd bench && $(GO) mod tidy -diff

# Findings fail. A vulnerability database that cannot be reached is not a
# finding, but it is said: nobody must read silence as "checked".
vuln: $(GOVULNCHECK)
	@.ci/vuln $(GOVULNCHECK)

bench: build
	cd bench && CGO_ENABLED=0 $(GO) run . -bin $(CURDIR)/bin

demo:
	CGO_ENABLED=0 $(GO) run ./cmd/bowline demo

clean:
	rm -rf bin .tools
