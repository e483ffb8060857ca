package controlplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bowline/controlplane/client"
	"bowline/controlplane/datadir"
	"bowline/controlplane/resource"
	"bowline/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), 60*time.Second, errors.New("test took longer than 60 s"))
	t.Cleanup(cancel)
	return ctx
}

// running is a server in the background of a test.
type running struct {
	t      *testing.T
	ready  datadir.Ready
	listen Listening
	cancel context.CancelFunc
	done   chan error
}

// serve starts a server and waits until it serves.
func serve(t *testing.T, opt Options) *running {
	t.Helper()
	r, err := tryServe(t, opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tryServe(t *testing.T, opt Options) (*running, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, cancel: cancel, done: make(chan error, 1)}
	up := make(chan struct{})
	opt.OnReady = func(ready datadir.Ready, l Listening) {
		r.ready, r.listen = ready, l
		close(up)
	}
	go func() { r.done <- Serve(ctx, opt) }()
	select {
	case <-up:
		t.Cleanup(r.stop)
		return r, nil
	case err := <-r.done:
		cancel()
		return nil, err
	case <-within(t).Done():
		cancel()
		t.Fatal("the server did not come up")
		return nil, nil
	}
}

func (r *running) stop() {
	r.t.Helper()
	if r.cancel == nil {
		return
	}
	r.cancel()
	r.cancel = nil
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Errorf("Serve: %v", err)
		}
	case <-within(r.t).Done():
		r.t.Error("the server did not stop")
	}
}

func (r *running) client(transport *http.Transport) *client.Client {
	r.t.Helper()
	token, err := datadir.ReadToken(r.ready.AdminTokenFile)
	if err != nil {
		r.t.Fatal(err)
	}
	if transport == nil {
		transport = &http.Transport{}
	}
	c, err := client.New(r.ready.URL, client.Options{Token: token, HTTP: &http.Client{Transport: transport}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

func TestServeFromStartToStop(t *testing.T) {
	t.Parallel()
	data, extra := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "r.json")
	r := serve(t, Options{Data: data, ReadyFile: extra, Launch: LaunchNone, MetricsAddr: "127.0.0.1:0", Build: resource.Build{Version: "v1"}})
	if !r.listen.NewToken || r.ready.PID != os.Getpid() || !strings.HasPrefix(r.ready.URL, "http://127.0.0.1:") {
		t.Errorf("ready %+v, %+v", r.ready, r.listen)
	}
	found, why, err := datadir.Find(data)
	if err != nil || found == nil || found.URL != r.ready.URL {
		t.Fatalf("Find: %+v, %q, %v", found, why, err)
	}
	c := r.client(nil)
	m, err := c.Meta(within(t))
	if err != nil || m.APIVersion != "1" || m.Launch != LaunchNone || m.Build.Version != "v1" || len(m.Drivers) != 3 {
		t.Errorf("meta %+v, %v", m, err)
	}
	if err := c.Ready(within(t)); err != nil {
		t.Error(err)
	}
	if _, err := tryServe(t, Options{Data: data}); wire.CodeOf(err) != wire.CodeDataDirBusy || wire.CodeOf(err).ExitCode() != wire.ExitNotReady {
		t.Errorf("second server: %v", err)
	}
	text := get(t, "http://"+r.listen.MetricsAddr.String()+"/metrics")
	for _, want := range []string{"bowline_events_committed_total 0", "bowline_acks_total 0", `bowline_build_info{`, "bowline_log_depth", "bowline_commit_duration_seconds_count", "go_goroutines"} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	r.stop()
	for _, f := range []string{filepath.Join(data, "ready.json"), extra} {
		if _, err := os.Stat(f); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there after the stop: %v", f, err)
		}
	}
	if s, why, err := datadir.Find(data); s != nil || err != nil {
		t.Errorf("Find after the stop: %v, %q, %v", s, why, err)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(within(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestPortIsKept(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	first := serve(t, Options{Data: data, Launch: LaunchNone})
	url := first.ready.URL
	first.stop()
	second := serve(t, Options{Data: data, Launch: LaunchNone})
	if second.ready.URL != url {
		t.Errorf("serves at %s after %s", second.ready.URL, url)
	}
	if second.listen.NewToken {
		t.Error("the second start made another token")
	}
	addr := second.listen.Addr.String()
	second.stop()
	// Somebody else takes the port meanwhile.
	l, err := new(net.ListenConfig).Listen(within(t), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_, err = tryServe(t, Options{Data: data, Launch: LaunchNone})
	if wire.CodeOf(err) != wire.CodePortTaken || wire.CodeOf(err).ExitCode() != wire.ExitNotReady {
		t.Errorf("port taken: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	third := serve(t, Options{Data: data, Launch: LaunchNone}) // the folder was given back
	if third.ready.URL != url {
		t.Errorf("serves at %s after %s", third.ready.URL, url)
	}
}

func TestPickedPortIsBelowTheEphemeralRange(t *testing.T) {
	t.Parallel()
	l, err := address{host: "127.0.0.1", loopback: true}.pick(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if p := portOf(l); p < portLow || p >= ephemeralLow() && p > portHigh {
		t.Errorf("port %d", p)
	}
}

func TestListenChecks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		opt    Options
		code   wire.Code
		launch string
	}{
		{Options{}, "", LaunchLocal},
		{Options{Listen: "127.0.0.1:0"}, "", LaunchLocal},
		{Options{Listen: "[::1]:0"}, "", LaunchLocal},
		{Options{Listen: "localhost:80"}, "", LaunchLocal},
		{Options{Listen: "127.0.0.1:0", Launch: LaunchNone}, "", LaunchNone},
		{Options{Listen: "0.0.0.0:0"}, wire.CodeListenRefused, ""},
		{Options{Listen: ":0"}, wire.CodeListenRefused, ""},
		{Options{Listen: "192.0.2.1:0"}, wire.CodeListenRefused, ""},
		{Options{Listen: "0.0.0.0:0", BehindProxy: true}, "", LaunchNone},
		{Options{Listen: "0.0.0.0:0", TLSCert: "c", TLSKey: "k"}, "", LaunchNone},
		{Options{TLSCert: "c"}, wire.CodeUsage, ""},
		{Options{TLSKey: "k"}, wire.CodeUsage, ""},
		{Options{Listen: "127.0.0.1"}, wire.CodeUsage, ""},
		{Options{Listen: "127.0.0.1:65536"}, wire.CodeUsage, ""},
		{Options{Listen: "127.0.0.1:http"}, wire.CodeUsage, ""},
		{Options{Launch: "somewhere"}, wire.CodeUsage, ""},
		{Options{MetricsAddr: "0.0.0.0:0"}, wire.CodeListenRefused, ""},
		{Options{MetricsAddr: "nowhere"}, wire.CodeUsage, ""},
	} {
		_, err := checkListen(within(t), &c.opt)
		switch {
		case c.code == "" && err != nil:
			t.Errorf("%+v: %v", c.opt, err)
		case c.code != "" && wire.CodeOf(err) != c.code:
			t.Errorf("%+v: %v, want %s", c.opt, err, c.code)
		case c.code == "" && c.opt.Launch != c.launch:
			t.Errorf("%+v: launch %s, want %s", c.opt, c.opt.Launch, c.launch)
		}
	}
	// Refused before anything is made.
	data := filepath.Join(t.TempDir(), "data")
	if _, err := tryServe(t, Options{Data: data, Listen: "0.0.0.0:0"}); wire.CodeOf(err) != wire.CodeListenRefused {
		t.Error(err)
	}
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the data folder was made: %v", err)
	}
}

func TestRemovedTokenFileRevokesTheToken(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	first := serve(t, Options{Data: data, Launch: LaunchNone})
	old, err := datadir.ReadToken(first.ready.AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	first.stop()
	if err := os.Remove(first.ready.AdminTokenFile); err != nil {
		t.Fatal(err)
	}
	second := serve(t, Options{Data: data, Launch: LaunchNone})
	if _, err := second.client(nil).Meta(within(t)); err != nil {
		t.Errorf("new token: %v", err)
	}
	c, err := client.New(second.ready.URL, client.Options{Token: old, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Meta(within(t)); wire.CodeOf(err) != wire.CodeUnauthorized {
		t.Errorf("old token: %v", err)
	}
}

func TestIdleServerEndsByItself(t *testing.T) {
	t.Parallel()
	r := serve(t, Options{Data: t.TempDir(), Launch: LaunchNone, IdleExit: time.Nanosecond})
	select {
	case err := <-r.done:
		if err != nil {
			t.Errorf("Serve: %v", err)
		}
		r.done <- nil
	case <-within(t).Done():
		t.Fatal("the idle server is still up")
	}
}

func TestRunThroughAPIAndSDK(t *testing.T) {
	t.Parallel()
	r := serve(t, Options{Data: t.TempDir(), Launch: LaunchNone})
	c := r.client(nil)
	run, err := c.CreateRun(within(t), resource.CreateRun{
		Driver: "command", Argv: []string{"true"}, Workspace: "/w", Placement: resource.PlacementAttached,
		Runner: &resource.RunnerBuild{Version: "0.3.0", Digest: "sha256:" + strings.Repeat("0", 64)},
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	// The stream is read while the run ends: the SDK and the API together.
	var got []string
	for line, err := range c.Events(within(t), run.ID, "") {
		if err != nil {
			t.Fatal(err)
		}
		if line.Event == nil {
			continue
		}
		got = append(got, line.ID+" "+line.Event.Type)
		if line.ID == "1.1" {
			if _, err := c.CancelRun(within(t), run.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(got) != 2 || got[1] != "1.2 run.ended" {
		t.Errorf("events %v", got)
	}
	if _, err := c.IssueTicket(within(t), run.ID, 0); wire.CodeOf(err) != wire.CodeConflict {
		t.Errorf("ticket of an ended run: %v", err)
	}
	list, err := c.ListRuns(within(t), client.ListQuery{Status: "cancelled"})
	if err != nil || len(list.Runs) != 1 {
		t.Errorf("list %+v, %v", list, err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key, pool := selfSigned(t, dir)
	r := serve(t, Options{Data: filepath.Join(dir, "data"), Listen: "0.0.0.0:0", TLSCert: cert, TLSKey: key, Launch: LaunchLocal})
	if !strings.HasPrefix(r.ready.URL, "https://127.0.0.1:") {
		t.Fatalf("URL %s", r.ready.URL)
	}
	c := r.client(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}})
	if _, err := c.Meta(within(t)); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(filepath.Join(dir, "data", "ca.pem")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("certificate for runners: %v, %v", st, err)
	}
	if _, err := tryServe(t, Options{Data: filepath.Join(dir, "other"), TLSCert: key, TLSKey: cert}); wire.CodeOf(err) != wire.CodeUsage {
		t.Errorf("files swapped: %v", err)
	}
}

func selfSigned(t *testing.T, dir string) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", raw), pool
}

func TestClientAddressBehindAProxy(t *testing.T) {
	t.Parallel()
	if clientAddress(&Options{}) != nil {
		t.Error("a header is believed without a proxy")
	}
	f := clientAddress(&Options{BehindProxy: true})
	r := &http.Request{Header: http.Header{"X-Forwarded-For": {"6.6.6.6, 10.0.0.1"}}, RemoteAddr: "127.0.0.1:1"}
	if got := f(r); got != "10.0.0.1" {
		t.Errorf("got %s, want the hop the proxy itself wrote", got)
	}
	r.Header = http.Header{}
	if got := f(r); got != "127.0.0.1" {
		t.Errorf("got %s, want the socket's address without its port", got)
	}
}
