package runner

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// flagCases: start, flags, URL rules and the ticket (1.4, 2.10, 11.3, 11.4, 11.7).
func flagCases(target Target) []suite.Case {
	refused := func(name, section, flag, value string) suite.Case {
		return with(target, name, section, func(e *env) {
			flags := e.flags(e.a.URL())
			if value == "(none)" {
				flags = set(flags, flag, "")
			} else {
				flags = set(flags, flag, value)
			}
			e.spawn(flags, e.a.NewTicket()).exit(1, name)
			e.noDial(name)
		})
	}
	url := func(name, url string) suite.Case {
		return with(target, "url/"+name, "1.4", func(e *env) {
			host := e.a.Addr()
			u := strings.ReplaceAll(url, "HOST", host)
			u = strings.ReplaceAll(u, "PORT", host[strings.LastIndexByte(host, ':')+1:])
			e.spawn(set(e.flags("x"), "--connect-url", u), e.a.NewTicket()).exit(1, "URL "+name)
			e.noDial(name)
		})
	}
	out := []suite.Case{
		with(target, "metadata", "11.3", func(e *env) {
			p := e.spawn([]string{"--build-metadata"}, "")
			p.exit(0, "--build-metadata")
			m, err := peer.ParseObject(bytes.TrimSpace([]byte(p.stdout.String())))
			e.OK(err, "metadata on stdout: %.300s", p.stdout.String())
			e.OK(peer.Members(m, "schema", "binaryName", "packageName", "packageVersion", "binaryContractVersion",
				"durableSessionCapabilities", "nativeExecutionVersion", "harnessDriverVersion", "prp", "prpTransportModes"), "metadata")
			e.Check(peer.Str(m, "packageVersion") != "" && peer.Str(m, "prp", "name") == peer.Protocol, "metadata %s", peer.Write(m))
			for n, v := range map[string]any{
				"schema": "paperclip-runner/runnerd-build-metadata/v1", "binaryName": "paperclip-runnerd", "packageName": "@paperclipai/paperclip-runner",
				"binaryContractVersion": 2, "durableSessionCapabilities": peer.A{"unlimited_runtime", "connection_lease_renewal"},
				"nativeExecutionVersion": 1, "harnessDriverVersion": 1,
			} {
				e.Check(peer.Equal(m[n], v), "metadata %s is %s", n, peer.Write(m[n]))
			}
			e.Check(peer.Int(m, "prp", "minimumVersion") == 1 && peer.Int(m, "prp", "maximumVersion") == 2, "prp %s", peer.Write(m["prp"]))
			modes := peer.List(m, "prpTransportModes")
			e.Check(len(modes) >= 2 && modes[0] == "dial_ws_loopback" && modes[1] == "dial_wss", "modes %s", peer.Write(m["prpTransportModes"]))
		}),
		url("scheme_http", "http://HOST/x"), url("scheme_https", "https://HOST/x"), url("scheme_missing", "HOST/x"),
		url("scheme_tcp", "tcp://HOST/x"), url("empty", " "), url("userinfo", "ws://user@HOST/x"), url("userinfo_password", "ws://a:b@HOST/x"),
		url("query", "ws://HOST/x?y=1"), url("empty_query", "ws://HOST/x?"), url("fragment", "ws://HOST/x#y"), url("backslash", `ws://HOST\x`),
		url("backslash_in_path", `ws://HOST/a\b`), url("white_space", "ws://HOST/a b"), url("leading_blank", " ws://HOST/x"),
		url("trailing_newline", "ws://HOST/x\n"), url("tab", "ws://HOST/\tx"), url("control_character", "ws://HOST/\x01x"), url("delete_character", "ws://HOST/\x7fx"),
		url("percent_in_authority", "ws://127.0.0.1%20:PORT/x"), url("percent_encoded_host", "ws://%31%32%37.0.0.1:PORT/x"),
		url("unbracketed_ipv6", "ws://::1:PORT/x"), url("malformed_bracket", "ws://[::1:PORT/x"), url("malformed_ipv6", "ws://[::zz]:PORT/x"),
		url("text_behind_bracket", "ws://[::1]x:PORT/x"), url("empty_host", "ws:///x"), url("empty_host_port", "ws://:PORT/x"), url("port_0", "ws://127.0.0.1:0/x"),
		url("port_65536", "ws://127.0.0.1:65536/x"), url("port_text", "ws://127.0.0.1:http/x"),
		url("ws_not_loopback", "ws://192.0.2.1:PORT/x"), url("ws_unspecified_address", "ws://0.0.0.0:PORT/x"), url("ws_ipv6_not_loopback", "ws://[2001:db8::1]:PORT/x"),
		refused("flags/no_state_dir", "11.4", "--state-dir", "(none)"),
		refused("flags/no_runner_id", "11.4", "--runner-id", "(none)"),
		refused("flags/no_run_id", "11.4", "--run-id", "(none)"),
		refused("flags/no_session_id", "11.4", "--session-id", "(none)"),
		refused("flags/no_lease_id", "11.4", "--environment-lease-id", "(none)"),
		refused("flags/no_turn_id", "11.4", "--turn-id", "(none)"),
		refused("flags/no_item_id", "11.4", "--item-id", "(none)"),
		refused("flags/run_id_161", "3.1", "--run-id", strings.Repeat("r", 161)),
		refused("flags/session_id_161", "3.1", "--session-id", strings.Repeat("s", 161)),
		refused("flags/turn_id_241", "3.1", "--turn-id", strings.Repeat("t", 241)),
		refused("flags/item_id_shape", "3.1", "--item-id", "a b"),
		refused("flags/frame_1023", "11.4", "--max-frame-bytes", "1023"),
		refused("flags/frame_16777217", "11.4", "--max-frame-bytes", "16777217"),
		refused("flags/frame_text", "11.4", "--max-frame-bytes", "many"),
		refused("flags/outbox_above_512_MiB", "9.3", "--max-outbox-bytes", "536870913"),
		refused("flags/reserve_not_smaller", "9.3", "--p0-reserve-bytes", "16777216"),
		refused("flags/ca_bundle_with_ws", "1.4", "--ca-bundle-path", "/dev/null"),
		refused("flags/listen_group_too", "11.2", "--listen-address", "0.0.0.0"),
		with(target, "flags/unknown_are_ignored", "11.4", func(e *env) {
			flags := append(e.flags(e.a.URL()), "--fake-harness", "/nowhere/harness", "--fake-harness-script", "/nowhere/script",
				"--lifecycle-mode", "warm", "--idle-timeout-ms", "1000", "--frobnicate", "7")
			e.spawn(flags, e.a.NewTicket())
			e.session(e.admit()).open(scripted())
		}),
		with(target, "flags/defaults", "11.4", func(e *env) {
			flags := set(set(set(e.flags(e.a.URL()), "--max-outbox-bytes", ""), "--p0-reserve-bytes", ""), "--reconnect-delay-ms", "")
			e.spawn(flags, e.a.NewTicket())
			e.admit()
			m := e.stateUntil("the limits", func(m peer.M) bool { return peer.Int(m, "maxOutboxBytes") == 16_777_216 })
			e.Check(peer.Int(m, "p0ReserveBytes") == 1_048_576, "p0ReserveBytes %v", m["p0ReserveBytes"])
		}),
		with(target, "flags/long_ids", "3.1", func(e *env) {
			e.a.Identity = peer.Identity{
				RunnerInstanceID: "r" + strings.Repeat("a", 100), EnvironmentLeaseID: "lease", RunID: "R" + strings.Repeat("u", 159),
				NormalizedSessionID: "s" + strings.Repeat(".", 159), TurnID: "t" + strings.Repeat(":", 239), ItemID: "i" + strings.Repeat("_", 239),
			}
			e.start()
			e.session(e.admit()).open(scripted())
		}),
		with(target, "flags/bare_environment", "11.6", func(e *env) {
			p := e.prepare(e.flags(e.a.URL()))
			p.cmd.Env = []string{ticketVariable + "=" + e.a.NewTicket()}
			e.run(p)
			e.session(e.admit()).open(scripted())
		}),
		with(target, "flags/relative_state_dir", "11.4", func(e *env) {
			e.spawn(set(e.flags(e.a.URL()), "--state-dir", "runner"), e.a.NewTicket())
			e.admit()
			e.stateUntil("ready", func(m peer.M) bool { return m["lifecycle"] == "ready" })
		}),
		with(target, "flags/state_dir_is_made_private_or_refused", "9.5", func(e *env) {
			e.OK(os.Mkdir(e.state, 0o755), "mkdir")
			e.OK(os.Chmod(e.state, 0o755), "chmod")
			p := e.start()
			l, err := e.a.Accept(acceptWait)
			if err != nil {
				p.exit(1, "a state directory open to others")
				return
			}
			e.keep(l)
			info, err := os.Stat(e.state)
			e.OK(err, "state directory")
			e.Check(info.Mode().Perm() == 0o700, "mode %v", info.Mode())
		}),
		with(target, "flags/state_dir_is_a_file", "9.5", func(e *env) {
			e.OK(os.WriteFile(e.state, nil, 0o600), "file")
			e.start().exit(1, "a state directory that is a file")
		}),
		with(target, "ticket/absent", "2.10", func(e *env) {
			e.spawn(e.flags(e.a.URL()), "").exit(1, "no ticket")
			e.noDial("no ticket")
		}),
		with(target, "ticket/white_space", "2.10", func(e *env) {
			e.spawn(e.flags(e.a.URL()), " \t").exit(1, "a ticket of white space")
		}),
		with(target, "ticket/empty", "2.10", func(e *env) {
			e.spawn(e.flags(e.a.URL()), "", ticketVariable+"=").exit(1, "an empty ticket")
		}),
		with(target, "ticket/erased_from_environ", "2.10", func(e *env) {
			p := e.start()
			e.hello()
			for _, part := range []string{"environ", "cmdline"} {
				text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, part))
				if errors.Is(err, fs.ErrPermission) && os.Getuid() != 0 {
					continue // a runner that hides it even from its own user leaks nothing either
				}
				e.OK(err, "%s", part)
				e.Check(!bytes.Contains(text, []byte(e.a.Ticket)), "the ticket is in /proc/PID/%s", part)
				e.Check(!bytes.Contains(text, []byte("bootstrap_")), "a part of the ticket is in /proc/PID/%s", part)
			}
		}),
		with(target, "ticket/not_in_children_or_files", "2.10", func(e *env) {
			_, s := e.begin()
			s.open(e.argv("/bin/sh", "-c", "tr '\\0' '\\n' </proc/self/environ; echo; env; echo; tr '\\0' '\\n' </proc/$PPID/environ; echo END-OF-ENV"))
			s.turn("go")
			s.event("turn.completed")
			text, err := peer.CanonicalUnbounded(s.eventList())
			e.OK(err, "events")
			e.Check(strings.Contains(text, "END-OF-ENV"), "the output of the child is not in the events: %.400s", text)
			for name, secret := range map[string]string{"ticket": e.a.Ticket, "lease token": e.a.LeaseToken, "variable": ticketVariable} {
				e.Check(!strings.Contains(text, secret), "the %s is in a child's environment", name)
			}
			for name, secret := range map[string]string{"ticket": e.a.Ticket, "lease token": e.a.LeaseToken} {
				found := e.search([]byte(secret))
				e.Check(found == "", "the %s lies in %s", name, found)
			}
		}),
		with(target, "dial/localhost_name", "1.4", func(e *env) {
			host := e.a.Addr()
			e.spawn(e.flags("ws://localhost:"+host[strings.LastIndexByte(host, ':')+1:]+e.a.Path), e.a.NewTicket())
			l := e.accept()
			e.OK(l.Switch(), "101")
			e.OK(l.ReadHello(), "auth_hello")
		}),
		with(target, "dial/scheme_is_exact_path_kept", "1.4", func(e *env) {
			e.a.Path = "/api/runner/v1/connect/" + peer.NewUUID()
			e.start()
			e.admit()
		}),
	}
	return append(out, tlsCases(target)...)
}

// eventList returns all events as one value.
func (s *session) eventList() peer.A {
	var a peer.A
	for _, ev := range s.events {
		a = append(a, ev)
	}
	return a
}

// search looks for bytes in the files of the state directory.
func (e *env) search(secret []byte) string {
	found := ""
	err := filepath.WalkDir(e.state, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !d.Type().IsRegular() {
			return nil //nolint:nilerr // files of a living runner come and go.
		}
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, secret) { //nolint:gosec // own directory.
			found = path
		}
		return nil
	})
	e.OK(err, "search")
	return found
}

// authorityTLS gives the authority a certificate and returns its CA as PEM.
func (e *env) authorityTLS() []byte {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	e.OK(err, "key")
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "conformance"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	e.OK(err, "certificate")
	e.a.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (e *env) file(name string, text []byte, mode os.FileMode) string {
	path := filepath.Join(e.dir, name)
	e.OK(os.WriteFile(path, text, mode), "write of %s", name)
	e.OK(os.Chmod(path, mode), "mode of %s", name)
	return path
}

// tlsCases: wss and the CA bundle (1.4).
func tlsCases(target Target) []suite.Case {
	bundle := func(name string, make func(e *env, ca []byte) string) suite.Case {
		return with(target, "tls/bundle_"+name, "1.4", func(e *env) {
			ca := e.authorityTLS()
			e.start([2]string{"--ca-bundle-path", make(e, ca)}).exit(1, "CA bundle "+name)
		})
	}
	return []suite.Case{
		with(target, "tls/private_bundle", "1.4", func(e *env) {
			ca := e.authorityTLS()
			e.start([2]string{"--ca-bundle-path", e.file("ca.pem", ca, 0o600)})
			e.session(e.admit()).open(scripted())
		}),
		with(target, "tls/unknown_authority", "1.4", func(e *env) {
			e.authorityTLS()
			p := e.start()
			l, err := e.a.Accept(acceptWait)
			e.Check(err != nil, "the runner sent a request to an unknown authority: %v", l)
			p.running("a TLS failure before authentication is retried")
		}),
		bundle("group_readable", func(e *env, ca []byte) string { return e.file("ca.pem", ca, 0o640) }),
		bundle("world_readable", func(e *env, ca []byte) string { return e.file("ca.pem", ca, 0o604) }),
		bundle("missing", func(e *env, _ []byte) string { return filepath.Join(e.dir, "none.pem") }),
		bundle("directory", func(e *env, _ []byte) string { return e.dir }),
		bundle("without_certificate", func(e *env, _ []byte) string { return e.file("ca.pem", []byte("hello\n"), 0o600) }),
		bundle("above_4_MiB", func(e *env, ca []byte) string {
			return e.file("ca.pem", append(ca, bytes.Repeat([]byte("\n"), 4<<20)...), 0o600)
		}),
		bundle("symlink", func(e *env, ca []byte) string {
			path := filepath.Join(e.dir, "link.pem")
			e.OK(os.Symlink(e.file("ca.pem", ca, 0o600), path), "symlink")
			return path
		}),
	}
}
