package api

import (
	"bytes"
	"net/http"
	"net/url"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"bowline/wire"
)

// readyz runs the checks. It names no ids and no paths: it is public.
func (s *Server) readyz(r *http.Request, q url.Values, _ any) (int, any, error) {
	_, verbose := q["verbose"]
	var b bytes.Buffer
	var failed []string
	for _, c := range s.cfg.Checks {
		mark := "[+]"
		if err := c.Run(r.Context()); err != nil {
			failed = append(failed, c.Name)
			mark = "[-]"
		}
		if verbose {
			b.WriteString(mark + " " + c.Name + "\n")
		}
	}
	if len(failed) > 0 {
		return 0, nil, wire.Errorf(wire.CodeUnavailable, "not ready").With("failed", failed)
	}
	b.WriteString("ok\n")
	return 200, rawAnswer{"text/plain; charset=utf-8", b.Bytes()}, nil
}

func (s *Server) metrics(*http.Request, url.Values, any) (int, any, error) {
	if s.cfg.Metrics == nil {
		return 0, nil, wire.Errorf(wire.CodeNotFound, "this server keeps no metrics")
	}
	text, err := MetricsText(s.cfg.Metrics)
	return 200, rawAnswer{string(expfmt.NewFormat(expfmt.TypeTextPlain)), text}, err
}

// MetricsText is the Prometheus text of what g gathers.
func MetricsText(g prometheus.Gatherer) ([]byte, error) {
	families, err := g.Gather()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}
