package modelserver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The environment variable the provider reads its key from, and what tests put
// there. The server does not check it.
const (
	KeyName = "MOCK_KEY"
	Key     = "dummy"
)

// RequireVariable makes a missing Codex binary a failure instead of a skip
// when it is "1".
const RequireVariable = "BOWLINE_REQUIRE_CODEX"

const config = `model = "mock-model"
model_provider = "mock"
approval_policy = "on-request"
sandbox_mode = %q
check_for_update_on_startup = false
web_search = "disabled"
[analytics]
enabled = false
[feedback]
enabled = false
[history]
persistence = "none"
[features]
plugins = false
apps = false
remote_plugin = false
skill_mcp_dependency_install = false
[model_providers.mock]
name = "mock"
base_url = %q
wire_api = "responses"
env_key = %q
request_max_retries = 0
stream_max_retries = %d
supports_websockets = false
`

// Home is what may differ in a Codex home.
type Home struct {
	Sandbox string // sandbox_mode; empty is "danger-full-access"
	Retries int    // stream_max_retries
}

// WriteCodexHome writes the config.toml of a Codex that talks to the model at
// url and to nothing else into dir, which must exist.
func WriteCodexHome(dir, url string) error { return Home{}.Write(dir, url) }

// Write is [WriteCodexHome] with another home.
func (h Home) Write(dir, url string) error {
	if h.Sandbox == "" {
		h.Sandbox = "danger-full-access"
	}
	text := fmt.Sprintf(config, h.Sandbox, url+"/v1", KeyName, h.Retries)
	return os.WriteFile(filepath.Join(dir, "config.toml"), []byte(text), 0o600)
}

// Env is the whole environment of a Codex process whose home is dir.
func Env(dir string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "CODEX_HOME=" + dir, KeyName + "=" + Key, "RUST_LOG=error"}
}

// RequireCodex returns the path of the pinned Codex binary. When it is not
// installed the test is skipped, or fails when [RequireVariable] is "1".
func RequireCodex(tb testing.TB) string {
	tb.Helper()
	const below = "driver/testdata/providers"
	root, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		parent := filepath.Dir(root)
		if parent == root {
			tb.Fatal("modelserver: the test does not run inside the module")
		}
		root = parent
	}
	path := filepath.Join(root, below, "node_modules/codex-linux/vendor/x86_64-unknown-linux-musl/bin/codex")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	message := "SKIPPED: the real Codex is not installed; run `npm ci` in " + below
	if os.Getenv(RequireVariable) == "1" {
		tb.Fatal(message)
	}
	tb.Skip(message)
	return ""
}
