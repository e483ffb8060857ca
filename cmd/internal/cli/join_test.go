package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bowline/controlplane/resource"
	"bowline/wire"
)

func TestReadToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const secret = "tok-secret"
	for _, tt := range []struct {
		name, content string
		mode          os.FileMode
		want          string // "" = refused
		message       string
	}{
		{"plain", secret, 0o600, secret, ""},
		{"with a newline", secret + "\n", 0o600, secret, ""},
		{"read only", secret, 0o400, secret, ""},
		{"group may read", secret, 0o640, "", "mode 0640"},
		{"others may read", secret, 0o604, "", "chmod 600"},
		{"empty", "", 0o600, "", "does not hold one token"},
		{"only space", " \n", 0o600, "", "does not hold one token"},
		{"two words", secret + " " + secret, 0o600, "", "does not hold one token"},
		{"two lines", secret + "\n" + secret + "\n", 0o600, "", "does not hold one token"},
		{"at the limit", strings.Repeat("x", maxTokenBytes), 0o600, strings.Repeat("x", maxTokenBytes), ""},
		{"beyond the limit", strings.Repeat("x", maxTokenBytes+1), 0o600, "", "does not hold one token"},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(tt.name, " ", "-"))
		if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, tt.mode); err != nil {
			t.Fatal(err)
		}
		got, err := readToken(path)
		if tt.want != "" {
			if err != nil || got != tt.want {
				t.Errorf("%s: %d bytes, %v", tt.name, len(got), err)
			}
			continue
		}
		wantCode(t, err, wire.CodeUsage, tt.message)
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows the token", tt.name)
		}
	}
	_, err := readToken(filepath.Join(dir, "none"))
	wantCode(t, err, wire.CodeUsage, "no such file")
	_, err = readToken(dir)
	wantCode(t, err, wire.CodeUsage, "regular file")
}

// answers is a server that answers everything alike.
func answers(t *testing.T, version string, status int, body string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if version != "" {
			w.Header().Set(resource.HeaderAPIVersion, version)
		}
		w.WriteHeader(status)
		if _, err := w.Write([]byte(body)); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestJoinRefuses(t *testing.T) {
	t.Parallel()
	a, _ := testApp(t) // neither HOME nor XDG_STATE_HOME
	token := filepath.Join(a.Dir, "token")
	if err := os.WriteFile(token, []byte("t"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(a.Dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	other := answers(t, "", 200, "hello")
	newer := answers(t, "2", 200, "{}")
	down := answers(t, resource.APIVersion, 503, `{"error":{"code":"unavailable","message":"not ready"}}`)
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, tt := range []struct {
		name string
		at   serverFlags
		code wire.Code
		want string
		exit int
	}{
		{"server without token", serverFlags{url: other.URL}, wire.CodeUsage, "--token-file", wire.ExitUsage},
		{"token without server", serverFlags{tokenFile: "token"}, wire.CodeUsage, "--server", wire.ExitUsage},
		{"no such token file", serverFlags{url: other.URL, tokenFile: "none"}, wire.CodeUsage, "--token-file", wire.ExitUsage},
		{"not a URL", serverFlags{url: "localhost:1", tokenFile: "token"}, wire.CodeUsage, "http://HOST:PORT", wire.ExitUsage},
		{"a token in the URL", serverFlags{url: "http://t@localhost:1", tokenFile: "token"}, wire.CodeUsage, "comes from a file", wire.ExitUsage},
		{"nobody there", serverFlags{url: gone.URL, tokenFile: "token"}, wire.CodeUnavailable, "cannot be reached", wire.ExitNotReady},
		{"somebody else", serverFlags{url: other.URL, tokenFile: "token"}, wire.CodeProtocol, "not a Bowline server", wire.ExitRefused},
		{"another version", serverFlags{url: newer.URL, tokenFile: "token"}, wire.CodeProtocol, "another API version", wire.ExitRefused},
		{"not ready", serverFlags{url: down.URL, tokenFile: "token"}, wire.CodeUnavailable, "not ready", wire.ExitNotReady},
		{"no data folder", serverFlags{}, wire.CodeUsage, "--data", wire.ExitUsage},
		{"data folder is a file", serverFlags{data: "file/x"}, wire.CodeUnavailable, "data folder", wire.ExitNotReady},
		{"server cannot be executed", serverFlags{data: "data"}, wire.CodeServerStart, "cannot be started", wire.ExitNotReady},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := a.join(t.Context(), &tt.at)
			wantCode(t, err, tt.code, tt.want)
			if got := a.exit(err); got != tt.exit {
				t.Errorf("exit code %d, want %d", got, tt.exit)
			}
		})
	}
}

// TestServerThatEnds: the reason of a start that failed is the server's own
// last word.
func TestServerThatEnds(t *testing.T) {
	t.Parallel()
	a, _ := testApp(t)
	a.Self = filepath.Join(a.Dir, "server")
	script := "#!/bin/sh\necho 'listening is not possible today' >&2\nexit 3\n"
	if err := os.WriteFile(a.Self, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(a.Dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, serveLogName), []byte("an old start's last word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := a.background(t.Context(), data)
	wantCode(t, err, wire.CodeServerStart, "listening is not possible today")
	if strings.Contains(err.Error(), "old start") {
		t.Errorf("the error repeats an old log: %v", err)
	}
}

// TestServerWithoutAWord: where to look is said when the log has no room.
func TestServerWithoutAWord(t *testing.T) {
	t.Parallel()
	a, _ := testApp(t)
	a.Self = filepath.Join(a.Dir, "server")
	if err := os.WriteFile(a.Self, []byte("#!/bin/sh\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(a.Dir, "data")
	_, err := a.background(t.Context(), data)
	wantCode(t, err, wire.CodeServerStart, "the server of "+data+" ended before it was ready: exit status 3, and its log "+filepath.Join(data, serveLogName)+" says nothing")
}

func TestTailOf(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	old := "old\n"
	if err := os.WriteFile(path, []byte(old+"first\n"+strings.Repeat("x", 2*startLogTail)+"\nlast\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for from, want := range map[int64]string{0: "last", int64(len(old)): "last", 1 << 20: ""} {
		got, err := tailOf(path, from)
		if err != nil || got != want {
			t.Errorf("from %d: %q, %v, want %q", from, got, err, want)
		}
	}
}

func TestStopNobody(t *testing.T) {
	t.Parallel()
	a, _ := testApp(t)
	was, err := a.stopServer(t.Context(), filepath.Join(a.Dir, "none"))
	if was || err != nil {
		t.Errorf("stopped %v, %v", was, err)
	}
}
