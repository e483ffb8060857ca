package sanitize

import (
	"errors"
	"strings"
	"testing"
)

const (
	key = "0123456789abcdefghij0123456789"
	jwt = "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl"
)

func TestPayload(t *testing.T) {
	t.Parallel()
	pem := `-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----`
	tests := []struct{ name, in, want string }{
		{"nothing", `{"text":"plain","n":1.0,"itemId":"a"}`, ``},
		{"by name", `{"sessionToken":"abc","Api-Key":7,"db":{"connection_string":["x"]}}`, `{"sessionToken":"[REDACTED]","Api-Key":"[REDACTED]","db":{"connection_string":"[REDACTED]"}}`},
		{"counters", `{"inputTokens":1,"tokensUsed":2,"tokenBudget":null,"tokenUsage":{"totalTokens":3}}`, ``},
		{"a counter that is text", `{"inputTokens":"abc"}`, `{"inputTokens":"[REDACTED]"}`},
		{"boundary", `{"authorizationBoundary":"grant"}`, ``},
		{"other boundary", `{"authorizationBoundary":"x"}`, `{"authorizationBoundary":"[REDACTED]"}`},
		{"assignment", `{"message":"bad init token=s3cret, password='a b' rest"}`, `{"message":"bad init token=[REDACTED], password=[REDACTED] rest"}`},
		{"bearer", `{"text":["Authorization: Bearer ` + key + ` end"]}`, `{"text":["Authorization: Bearer [REDACTED] end"]}`},
		{"sk", `{"text":"sk-` + key + `"}`, `{"text":"[REDACTED]"}`},
		{"short sk", `{"text":"sk-short"}`, ``},
		{"github", `{"text":"ghp_` + key + ` github_pat_` + key + `"}`, `{"text":"[REDACTED] [REDACTED]"}`},
		{"jwt", `{"text":"a ` + jwt + ` b"}`, `{"text":"a [REDACTED] b"}`},
		{"names with dots", `{"text":"controlplane.authority.conductor_close"}`, ``},
		{"pem", `{"text":"x ` + pem + ` y"}`, `{"text":"x [REDACTED] y"}`},
		{"what a command printed", `{"stream":"stdout","text":"token=abc"}`, ``},
		{"long text stays", `{"text":"` + strings.Repeat("a", 10000) + `"}`, ``},
	}
	s := New()
	for _, tt := range tests {
		want := tt.want
		if want == "" {
			want = tt.in
		}
		got, err := s.Payload([]byte(tt.in))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", tt.name, got, err, want)
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	s := New()
	for _, in := range []string{
		`{"itemId":"sk-` + key + `"}`, `{"a":{"schema":"token=x"}}`, `{"ticketId":"t"}`, `{"status":"Bearer ` + key + `"}`,
	} {
		_, err := s.Payload([]byte(in))
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Member == "" {
			t.Errorf("%s: %v", in, err)
		}
		if err != nil && strings.Contains(err.Error(), key) {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}
