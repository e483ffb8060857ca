package authority

import (
	"fmt"
	"strings"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// digestCases: inputs whose digest depends on redaction and bounds (7.4).
func digestCases(target Target) []suite.Case {
	repeat := func(v any, n int) peer.A {
		a := make(peer.A, n)
		for i := range a {
			a[i] = v
		}
		return a
	}
	manyKeys := func(n int) peer.M {
		m := peer.M{}
		for i := range n {
			m[fmt.Sprintf("k%d", i)] = i
		}
		return m
	}
	jwt := "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2Q"
	inputs := map[string]any{
		"secret_keys": peer.M{
			"sessionToken": "abc", "tokenBudget": 5, "AUTHORIZATION": peer.M{"x": 1}, "my-cookie-jar": peer.A{1}, "private_key": "k", "privatekey": "k",
			"private  key": "two blanks are not one", "api-key": 1, "apikey": 1, "apiXkey": 1, "connection string": 1, "connectionString": nil,
			"passwd": "", "credentials": false, "plain": "kept",
		},
		"bearer":                        peer.M{"t": "Bearer 0123456789 and bearer\tabcdefgh, Bearer short, xBearer 0123456789, Bearer  a+b/c~d.e=-_"},
		"prefixes":                      peer.M{"t": "sk_abcdefgh pk_12345678 pcgw_abcd-efgh GHP_abcdefgh github_pat_abcdefgh sk_short ask_abcdefgh sk-abcdefghijkl"},
		"jwt":                           peer.M{"t": "x " + jwt + " y " + jwt + "." + "zzzzzzzz eyJshort.eyJshort.x"},
		"query_parameters":              peer.M{"u": "https://h/p?code=1&key=2&x=3&api_key=4#f ?access-token=5 &ACCESSTOKEN=6 &state=&secret=7\n?token=8&apikey=9"},
		"array_of_512":                  repeat(1, 512),
		"array_of_513":                  repeat(1, 513),
		"string_200000":                 strings.Repeat("y", 200_000),
		"string_200001":                 strings.Repeat("y", 200_001),
		"string_cut_in_a_pair":          strings.Repeat("y", 199_999) + "\U0001F300\U0001F300",
		"depth_16":                      nested(16),
		"depth_17":                      nested(17),
		"object_of_512":                 manyKeys(512),
		"object_of_513":                 manyKeys(513),
		"object_of_600":                 manyKeys(600),
		"nodes_10001":                   repeat(repeat(0, 99), 100),
		"nodes_10100":                   repeat(repeat(0, 100), 100),
		"nodes_before_keys":             peer.M{"a": repeat(repeat(0, 511), 25), "token": "z"},
		"locale_order":                  peer.M{"b": 1, "A": 2, "a": 3, "B": 4, "\u00e9": 5, "e": 6, "_": 7, "1": 8, "\U0001F300": 9, "\uff61": 10},
		"number_forms":                  peer.M{"n": peer.A{peer.Raw("1.0"), peer.Raw("-0"), peer.Raw("1e21"), peer.Raw("1e-7"), peer.Raw("123456789012345680000")}},
		"html_and_controls":             peer.M{"s": "<&>\u2028\u2029\x01\x7f\"\\"},
		"lone_surrogate":                peer.M{"s": peer.Raw(`"\ud83c lone"`)},
		"proto":                         peer.Raw(`{"__proto__":{"a":1},"b":2}`),
		"long_s_and_kelvin_do_not_fold": peer.M{"\u017fecret": 1, "to\u212aen": 2, "t": "s\u212a_abcdefgh Bearer abcd\u017fefghijk"},
		"unicode_white_space":           peer.M{"t": "Bearer\u00a0abcdefgh https://h/?code=1\u00a0after"},
		"top_level_string":              "Bearer 0123456789",
		"top_level_array":               peer.A{},
		"top_level_number":              5,
		"top_level_false":               false,
	}
	for name, v := range map[string]int{"exact": 0} {
		inputs["astral_keys_"+name] = peer.M{"\uff61": v, "\U0001F300": v + 1, "z": v + 2}
	}
	var out []suite.Case
	for name, input := range inputs {
		out = append(out, with(target, "digest/"+name, "7.4", func(e *env) {
			r := e.join()
			e.send(r, r.EventEnvelope(inputEvent(e, r, 1, "call-1", input)))
			e.toolAnswer(r, 1, "call-1")
			e.noFault()
		}))
	}
	for name, input := range map[string]any{
		"tokenBudget": peer.M{"tokenBudget": 5}, "bearer": "Bearer 0123456789", "array_of_600": repeat(1, 600), "nesting_of_20": nested(20),
	} {
		out = append(out, with(target, "digest/plain_"+name+"_is_a_fault", "7.4", func(e *env) {
			r := e.join()
			ev := inputEvent(e, r, 1, "call-1", input)
			text, err := peer.CanonicalUnbounded(input)
			e.OK(err, "canonical form")
			setDigest(ev, "sha256:"+peer.SHA256Hex(text))
			e.send(r, r.EventEnvelope(ev))
			e.closed(r.Sock, "a plain digest")
			e.fault("semantic_input_digest_mismatch")
		}))
	}
	return out
}
