package authority

import (
	"strings"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// upgradeCases: opening requests (1.1, 1.2, 1.3).
func upgradeCases(target Target) []suite.Case {
	refuse := func(name, status string, u peer.Upgrade) suite.Case {
		return with(target, "upgrade/"+name, "1.2", func(e *env) {
			s, resp, err := peer.DialRaw(e.url, u)
			e.OK(err, "no answer to the opening request")
			e.keep(s)
			want := map[string]string{"404": "HTTP/1.1 404 Not Found", "400": "HTTP/1.1 400 Bad Request"}[status]
			e.Check(resp.Line == want, "answer is %q, expected %q", resp.Line, want)
			if status == "404" {
				e.Check(strings.Contains(strings.ToLower(strings.Join(resp.Header("Connection"), ",")), "close"), "404 without Connection: close: %q", resp.Headers)
			}
			e.goneAfterRefusal(s)
		})
	}
	accept := func(name, section string, u peer.Upgrade) suite.Case {
		return with(target, "upgrade/"+name, section, func(e *env) {
			s, resp, err := peer.DialRaw(e.url, u)
			e.OK(err, "no answer to the opening request")
			e.keep(s)
			e.OK(resp.CheckSwitch(), "switch")
			r := &peer.Runner{Sock: s, Config: e.config(1, 2)}
			e.OK(r.Authenticate(), "handshake after it")
		})
	}
	const path = "/durableRecovery/connect"
	return []suite.Case{
		accept("plain", "1.1", peer.Upgrade{}),
		accept("query_is_ignored", "1.2", peer.Upgrade{Target: path + "?run=1&x=%zz"}),
		accept("empty_query", "1.2", peer.Upgrade{Target: path + "?"}),
		accept("upgrade_header_case", "1.2", peer.Upgrade{Upgrade: "WebSocket"}),
		accept("connection_list", "1.2", peer.Upgrade{Connection: "keep-alive, Upgrade"}),
		accept("extension_offer_is_not_answered", "1.1", peer.Upgrade{Extra: []string{"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"}}),
		accept("subprotocol_offer_is_not_answered", "1.1", peer.Upgrade{Extra: []string{"Sec-WebSocket-Protocol: prp, chat"}}),
		accept("foreign_origin", "1.2", peer.Upgrade{Extra: []string{"Origin: https://evil.example"}}),
		accept("foreign_host", "1.2", peer.Upgrade{Host: "other.example:99"}),
		accept("cookie_and_bearer_unused", "1.2", peer.Upgrade{Extra: []string{"Cookie: a=b", "Authorization: Bearer nothing"}}),
		refuse("other_path", "404", peer.Upgrade{Target: "/durableRecovery/other"}),
		refuse("root_path", "404", peer.Upgrade{Target: "/"}),
		refuse("trailing_slash", "404", peer.Upgrade{Target: path + "/"}),
		refuse("longer_path", "404", peer.Upgrade{Target: path + "/run-1"}),
		refuse("path_case", "404", peer.Upgrade{Target: "/durablerecovery/connect"}),
		refuse("percent_encoded_path", "404", peer.Upgrade{Target: "/durableRecovery/%63onnect"}),
		refuse("double_slash", "404", peer.Upgrade{Target: "//durableRecovery/connect"}),
		refuse("embedded_path", "404", peer.Upgrade{Target: "/api/runner/v1/connect"}),
		refuse("path_before_key", "404", peer.Upgrade{Target: "/x", Key: "AA=="}),
		refuse("method_post", "400", peer.Upgrade{Method: "POST", Extra: []string{"Content-Length: 0"}}),
		refuse("method_put", "400", peer.Upgrade{Method: "PUT", Extra: []string{"Content-Length: 0"}}),
		refuse("upgrade_list", "400", peer.Upgrade{Upgrade: "websocket, h2c"}),
		refuse("upgrade_other", "400", peer.Upgrade{Upgrade: "h2c"}),
		refuse("version_8", "400", peer.Upgrade{Version: "8"}),
		refuse("version_14", "400", peer.Upgrade{Version: "14"}),
		refuse("version_list", "400", peer.Upgrade{Version: "13, 8"}),
		refuse("version_missing", "400", peer.Upgrade{Version: "-"}),
		refuse("key_missing", "400", peer.Upgrade{Key: "-"}),
		refuse("key_of_15_bytes", "400", peer.Upgrade{Key: "AAAAAAAAAAAAAAAAAAAA"}),
		refuse("key_of_17_bytes", "400", peer.Upgrade{Key: "AAAAAAAAAAAAAAAAAAAAAAA="}),
		refuse("key_without_padding", "400", peer.Upgrade{Key: "AAAAAAAAAAAAAAAAAAAAAA"}),
		refuse("key_not_canonical", "400", peer.Upgrade{Key: "AAAAAAAAAAAAAAAAAAAAAB=="}),
		refuse("key_base64url", "400", peer.Upgrade{Key: "-_AAAAAAAAAAAAAAAAAAAA=="}),
		refuse("key_not_base64", "400", peer.Upgrade{Key: "!!!!"}),
		refuse("key_twice", "400", peer.Upgrade{Extra: []string{"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="}}),
		refuse("plain_request", "404", peer.Upgrade{Upgrade: "-", Connection: "close", Version: "-", Key: "-"}),
		refuse("plain_request_elsewhere", "404", peer.Upgrade{Target: "/healthz", Upgrade: "-", Connection: "close", Version: "-", Key: "-"}),
		with(target, "upgrade/loopback_only", "1.3", func(e *env) {
			host, err := peer.HostOf(e.url)
			e.OK(err, "connect URL")
			e.Check(strings.HasPrefix(host, "127.0.0.1:") && !strings.HasSuffix(host, ":0"), "host is %s", host)
		}),
		with(target, "upgrade/head_bytes_are_fed", "1.2", func(e *env) {
			cfg := e.config(1, 2)
			r := &peer.Runner{Config: cfg}
			hello := r.HelloEnvelope()
			s, resp, err := peer.DialRaw(e.url, peer.Upgrade{Tail: peer.Text(peer.Write(hello), true).Encode()})
			e.OK(err, "dial")
			e.keep(s)
			e.OK(resp.CheckSwitch(), "switch")
			r.Sock, r.Hello = s, peer.CloneM(hello)
			e.OK(r.ReadChallenge(), "challenge to the hello sent with the request")
			e.OK(r.SendResponse(nil), "response")
			e.OK(r.ReadWelcome(), "welcome")
		}),
	}
}

// goneAfterRefusal reads the rest of a refused answer up to the end of the
// connection; a body is allowed, staying open is not.
func (e *env) goneAfterRefusal(s *peer.Sock) {
	_, err := s.Drain(closeWait)
	e.OK(err, "the socket must be destroyed after a refusal")
}
