package authority

import (
	"fmt"
	"strings"
	"time"

	"bowline/conformance/peer"
	"bowline/conformance/suite"
)

// eventCases: events, their identity and sequence (5.6, 7.1, 10.2).
func eventCases(target Target) []suite.Case {
	var out []suite.Case
	// closes sends a wrong event as the second one: no ack, no fault, no change.
	closes := func(name, section string, change func(env, ev peer.M)) {
		out = append(out, with(target, "event/"+name, section, func(e *env) {
			r := e.join()
			e.alive(r, 1)
			m := r.EventEnvelope(r.NewEvent(2, "harness.ready", peer.M{}))
			change(m, peer.Obj(m, "payload"))
			e.send(r, m)
			e.closed(r.Sock, name)
			e.noFault()
			s := e.state()
			e.Check(peer.Int(s, "ackedSourceSeq") == 1 && len(peer.List(s, "events")) == 1, "state %.300s", peer.Write(s))
			e.alive(e.again(r), 2)
		}))
	}
	set := func(n string, v any) func(env, ev peer.M) { return func(_, ev peer.M) { ev[n] = v } }
	for _, n := range peer.IdentityNames() {
		closes("envelope_"+n+"_other", "10.2 step 2", func(env, _ peer.M) { env[n] = "other" })
		closes("envelope_"+n+"_missing", "10.2 step 2", func(env, _ peer.M) { delete(env, n) })
	}
	for _, n := range []string{"sourceInstanceId", "runId", "normalizedSessionId", "turnId", "itemId"} {
		closes("event_"+n+"_other", "5.6", set(n, "other"))
		closes("event_"+n+"_missing", "5.6", func(_, ev peer.M) { delete(ev, n) })
	}
	for _, n := range []string{"schema", "sourceEventId", "sourceSeq", "sourceKind", "eventType", "schemaVersion", "priority", "emittedAt", "payload"} {
		closes(n+"_missing", "7.1", func(_, ev peer.M) { delete(ev, n) })
		closes(n+"_null", "7.1", set(n, nil))
	}
	for name, v := range map[string]any{
		"schema_v3": peer.M{"schema": "paperclip.prp.event.v3", "schemaVersion": 3}, "schema_other": peer.M{"schema": "x"},
		"schema_version_mismatch": peer.M{"schemaVersion": 2}, "schema_v2_version_1": peer.M{"schema": "paperclip.prp.event.v2"},
		"sourceEventId_empty": peer.M{"sourceEventId": ""}, "sourceEventId_161": peer.M{"sourceEventId": strings.Repeat("e", 161)},
		"sourceEventId_161_astral": peer.M{"sourceEventId": strings.Repeat("\U0001F300", 161)},
		"sourceEventId_number":     peer.M{"sourceEventId": 5}, "sourceSeq_string": peer.M{"sourceSeq": "2"},
		"sourceSeq_fraction": peer.M{"sourceSeq": peer.Raw("2.5")}, "sourceSeq_zero": peer.M{"sourceSeq": 0},
		"sourceSeq_negative": peer.M{"sourceSeq": -2}, "sourceSeq_not_safe": peer.M{"sourceSeq": peer.Raw("9007199254740993")},
		"sourceKind_other": peer.M{"sourceKind": "host"}, "priority_3": peer.M{"priority": 3}, "priority_negative": peer.M{"priority": -1},
		"priority_string": peer.M{"priority": "1"}, "priority_fraction": peer.M{"priority": peer.Raw("0.5")},
		"eventType_unknown": peer.M{"eventType": "harness.unknown"}, "eventType_legacy": peer.M{"eventType": "provider.event"},
		"eventType_legacy_input": peer.M{"eventType": "runtime.input.requested"}, "eventType_usage_updated": peer.M{"eventType": "usage.updated"},
		"eventType_proto": peer.M{"eventType": "__proto__"}, "eventType_v2_only": peer.M{"eventType": "session.goal.snapshot", "payload": peer.M{"goal": nil}},
		"emittedAt_text": peer.M{"emittedAt": "yesterday"}, "emittedAt_number": peer.M{"emittedAt": 1767323045006},
		"emittedAt_date_only": peer.M{"emittedAt": "2026-01-02"}, "emittedAt_empty": peer.M{"emittedAt": ""},
		"observedAt_text": peer.M{"observedAt": "later"}, "payload_array": peer.M{"payload": peer.A{}}, "payload_string": peer.M{"payload": "x"},
		"channel_unknown": peer.M{"payload": peer.M{"channel": "loud"}}, "channel_number": peer.M{"payload": peer.M{"channel": 1}},
		"providerPhase_number": peer.M{"payload": peer.M{"providerPhase": 1}}, "providerMethod_null": peer.M{"payload": peer.M{"providerMethod": nil}},
	} {
		closes(name, "7.1", func(_, ev peer.M) {
			for k, x := range v.(peer.M) { //nolint:forcetypeassert // the table holds objects.
				ev[k] = x
			}
		})
	}
	closes("sequence_gap", "10.2 step 6", set("sourceSeq", 3))
	closes("sequence_used_by_another_id", "10.2 step 6", set("sourceSeq", 1))
	closes("known_id_new_sequence", "10.2 step 6", func(env, ev peer.M) {
		ev["sourceEventId"] = fmt.Sprintf("event_%s_%016d", peer.Str(env, "runnerInstanceId"), 1)
	})

	accept := func(name, section string, change func(env, ev peer.M)) {
		out = append(out, with(target, "event/"+name, section, func(e *env) {
			r := e.join()
			m := r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{}))
			change(m, peer.Obj(m, "payload"))
			e.send(r, m)
			e.ack(r, 1)
			e.send(r, m)
			e.ack(r, 1)
			ev := peer.List(e.state(), "events")
			e.Check(len(ev) == 1, "%d events", len(ev))
			want := peer.M{
				"sourceSeq": 1, "sourceEventId": peer.Get(m, "payload", "sourceEventId"),
				"eventType": peer.Get(m, "payload", "eventType"), "deliveryCount": 2,
			}
			e.Check(peer.Equal(ev[0], want), "event is %s, expected %s", peer.Write(ev[0]), peer.Write(want))
		}))
	}
	accept("unknown_members_everywhere", "7.1", func(env, ev peer.M) {
		env["more"], ev["more"] = peer.M{"a": 1}, peer.A{1}
		peer.Obj(ev, "payload")["more"] = nil
	})
	accept("id_of_160_code_points_beyond_the_bmp", "7.1", set("sourceEventId", strings.Repeat("\U0001F300", 160)))
	accept("id_without_a_pattern", "7.1", set("sourceEventId", "\u00e9 <&> \"x\" \\ \u2028"))
	accept("id_proto", "7.1", set("sourceEventId", "__proto__"))
	accept("id_constructor", "7.1", set("sourceEventId", "constructor"))
	accept("source_kind_control_plane", "7.1", set("sourceKind", "control_plane"))
	accept("priority_0", "7.1", set("priority", 0))
	accept("priority_2", "7.1", set("priority", 2))
	accept("observedAt", "7.1", set("observedAt", "2026-01-02T03:04:05.006Z"))
	accept("emittedAt_without_milliseconds", "7.1", set("emittedAt", "2026-01-02T03:04:05Z"))
	accept("channel_and_provider_texts", "7.1", func(_, ev peer.M) {
		ev["payload"] = peer.M{"channel": "final", "providerPhase": "final_answer", "providerMethod": "turn/completed"}
	})
	accept("text_with_every_escape", "3.9", func(_, ev peer.M) {
		ev["payload"] = peer.M{"t": "<&>\u2028\u2029\u00e9\U0001F300\"\\/\b\f\n\r\t\x01\x7f", "lone": peer.Raw(`"\ud83c x \udf00"`), "__proto__": peer.M{"a": 1}}
	})
	accept("numbers_of_every_spelling", "3.9", func(_, ev peer.M) {
		ev["payload"] = peer.M{"n": peer.A{peer.Raw("1.0"), peer.Raw("-0"), peer.Raw("1e21"), peer.Raw("1E-7"), peer.Raw("9007199254740993"), peer.Raw("0.1"), peer.Raw("5e-324"), peer.Raw("1.7976931348623157e308")}}
	})
	accept("duplicate_members", "appendix B 4", func(_, ev peer.M) { ev["payload"] = peer.Raw(`{"a":1,"a":2}`) })
	accept("large_event", "1.5", func(_, ev peer.M) { ev["payload"] = peer.M{"text": strings.Repeat("x", 500_000)} })

	for _, v := range []struct {
		kind    string
		payload peer.M
	}{
		{"session.goal.snapshot", peer.M{"goal": nil}},
		{"session.goal.updated", peer.M{"goal": peer.M{
			"objective": "o", "status": "active", "tokenBudget": nil, "tokensUsed": 0, "elapsedSeconds": 0, "iterations": 0,
			"lastReason": nil, "createdAt": nil, "updatedAt": nil, "completedAt": nil, "workingNow": false,
		}}},
	} {
		for _, lo := range []int{1, 2} {
			out = append(out, with(target, fmt.Sprintf("event/v2_%s_on_v%d", v.kind, lo), "5.10 (run)", func(e *env) {
				r := e.joinWith(e.config(lo, lo))
				ev := r.NewEvent(1, v.kind, v.payload)
				ev["schema"], ev["schemaVersion"] = "paperclip.prp.event.v2", 2
				e.send(r, r.EventEnvelope(ev))
				e.ack(r, 1)
			}))
		}
	}
	out = append(out,
		with(target, "event/sequence_and_state", "5.6", func(e *env) {
			r := e.joinV1()
			for seq := int64(1); seq <= 5; seq++ {
				e.alive(r, seq)
			}
			s := e.state()
			e.Check(peer.Int(s, "ackedSourceSeq") == 5, "ackedSourceSeq %v", s["ackedSourceSeq"])
			for i, v := range peer.List(s, "events") {
				want := peer.M{
					"sourceSeq": i + 1, "eventType": "harness.ready", "deliveryCount": 1,
					"sourceEventId": fmt.Sprintf("event_%s_%016d", e.id.RunnerInstanceID, i+1),
				}
				e.Check(peer.Equal(v, want), "event %d is %s", i, peer.Write(v))
			}
			r2 := e.again(r)
			e.Check(peer.Int(r2.Welcome, "payload", "ackedSourceSeq") == 5, "welcome acknowledges %v", peer.Get(r2.Welcome, "payload", "ackedSourceSeq"))
		}),
		with(target, "event/first_must_be_one", "5.6", func(e *env) {
			r := e.join()
			e.event(r, 2)
			e.closed(r.Sock, "sequence 2 first")
		}),
		with(target, "event/v2_turnId_above_160", "7.1", func(e *env) {
			r := e.join()
			e.alive(r, 1) // v1 allows 240
			ev := r.NewEvent(2, "session.goal.snapshot", peer.M{"goal": nil})
			ev["schema"], ev["schemaVersion"] = "paperclip.prp.event.v2", 2
			e.send(r, r.EventEnvelope(ev))
			e.closed(r.Sock, "a v2 event with a turnId of 200")
		}, peer.M{"identity": peer.M{
			"runnerInstanceId": "r", "environmentLeaseId": "l", "runId": "run", "normalizedSessionId": "s",
			"turnId": strings.Repeat("t", 200), "itemId": "i",
		}}),
		with(target, "event/v2_lacks_some_v1_types", "7.2", func(e *env) {
			for _, kind := range []string{"runner.backpressure", "semantic_tool.reconciled"} {
				r := e.join()
				ev := r.NewEvent(1, kind, peer.M{})
				ev["schema"], ev["schemaVersion"] = "paperclip.prp.event.v2", 2
				e.send(r, r.EventEnvelope(ev))
				e.closed(r.Sock, kind+" as v2")
			}
		}),
		with(target, "event/commit_failure_closes_then_heals", "5.6", func(e *env) {
			r := e.join()
			m := e.event(r, 1)
			e.closed(r.Sock, "a failed commit callback")
			s := e.state()
			e.Check(peer.Int(s, "ackedSourceSeq") == 0 && len(peer.List(s, "events")) == 0, "state %.300s", peer.Write(s))
			e.noFault()
			r = e.again(r)
			e.Check(peer.Int(r.Welcome, "payload", "ackedSourceSeq") == 0, "welcome acknowledges a lost event")
			e.send(r, m)
			e.ack(r, 1)
			ev := peer.List(e.state(), "events")
			e.Check(len(ev) == 1 && peer.Int(ev[0], "deliveryCount") == 1, "events %s", peer.Write(e.state()["events"]))
		}, peer.M{"commit": "fail-once"}),
		with(target, "event/frames_behind_a_failed_commit", "1.6", func(e *env) {
			r := e.join()
			e.OK(r.WriteFrames(
				r.Frame(r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{}))),
				r.Frame(r.EventEnvelope(r.NewEvent(2, "harness.ready", peer.M{}))),
			), "write")
			e.closed(r.Sock, "a failed commit callback")
			e.Check(peer.Int(e.state(), "ackedSourceSeq") == 0, "event 2 was taken before event 1")
			r = e.again(r)
			e.alive(r, 1)
			e.alive(r, 2)
		}, peer.M{"commit": "fail-once"}),
		long(with(target, "event/replay_outside_the_window_closes", "8.3", func(e *env) {
			r := e.join()
			const window = 4096
			first := r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{}))
			for from := int64(1); from <= window+1; from += 200 {
				var frames []peer.Frame
				to := min(from+199, window+1)
				for seq := from; seq <= to; seq++ {
					frames = append(frames, r.Frame(r.EventEnvelope(r.NewEvent(seq, "harness.ready", peer.M{}))))
				}
				e.OK(r.WriteFrames(frames...), "write")
				for seq := from; seq <= to; seq++ {
					e.ack(r, seq)
				}
			}
			e.send(r, r.EventEnvelope(r.NewEvent(2, "harness.ready", peer.M{})))
			e.ack(r, window+1)
			e.send(r, first)
			e.closed(r.Sock, "a replay from outside the window")
			s := e.state()
			e.Check(len(peer.List(s, "events")) == window && s["fault"] == nil, "%d events", len(peer.List(s, "events")))
		}), 120*time.Second),
	)
	return out
}

// replayCases: redeliveries (5.6, 3.9) and the latch order of steps 7 and 8.
func replayCases(target Target) []suite.Case {
	conflict := func(name, section string, payload any, change func(env, ev peer.M)) suite.Case {
		return with(target, "replay/"+name, section, func(e *env) {
			r := e.join()
			ev := r.NewEvent(1, "harness.ready", peer.M{})
			ev["payload"] = payload
			m := r.EventEnvelope(ev)
			e.send(r, m)
			e.ack(r, 1)
			n := peer.CloneM(m)
			change(n, peer.Obj(n, "payload"))
			e.send(r, n)
			e.closed(r.Sock, "a changed replay")
			e.fault("source_event_replay_conflict")
			s := e.state()
			e.Check(peer.Int(s, "ackedSourceSeq") == 1 && peer.Int(peer.List(s, "events")[0], "deliveryCount") == 1, "state %.400s", peer.Write(s))
		})
	}
	same := func(name, section string, payload peer.Raw, spelled peer.Raw) suite.Case {
		return with(target, "replay/"+name, section, func(e *env) {
			r := e.join()
			ev := r.NewEvent(1, "harness.ready", peer.M{})
			ev["payload"] = payload
			e.send(r, r.EventEnvelope(ev))
			e.ack(r, 1)
			ev["payload"] = spelled
			e.send(r, r.EventEnvelope(ev))
			e.ack(r, 1)
			e.noFault()
			e.alive(r, 2)
		})
	}
	setP := func(payload any) func(env, ev peer.M) { return func(_, ev peer.M) { ev["payload"] = payload } }
	limit := func(name string, payload any, ok bool) suite.Case {
		return with(target, "replay/"+name, "3.9 (run)", func(e *env) {
			r := e.join()
			m := r.EventEnvelope(r.NewEvent(1, "harness.ready", peer.M{"x": payload}))
			e.send(r, m)
			e.ack(r, 1)
			for range 2 {
				e.send(r, m)
				if ok {
					e.ack(r, 1)
					continue
				}
				e.closed(r.Sock, "a redelivery above the canonical limits")
				r = e.again(r)
			}
			e.noFault()
			e.alive(r, 2)
		})
	}
	wide := func(n int) peer.A {
		out := make(peer.A, n)
		for i := range out {
			out[i] = 0
		}
		return out
	}
	probe := (&peer.Runner{Config: peer.RunnerConfig{Identity: peer.NewIdentity()}})
	base := peer.Nodes(probe.EventEnvelope(probe.NewEvent(1, "harness.ready", peer.M{"x": peer.A{}})))
	return []suite.Case{
		with(target, "replay/identical", "5.6", func(e *env) {
			r := e.join()
			first := e.event(r, 1)
			e.ack(r, 1)
			e.alive(r, 2)
			e.alive(r, 3)
			e.send(r, first)
			e.ack(r, 3) // cumulative
			e.send(r, first)
			e.ack(r, 3)
			ev := peer.List(e.state(), "events")
			e.Check(len(ev) == 3 && peer.Int(ev[0], "deliveryCount") == 3 && peer.Int(ev[1], "deliveryCount") == 1, "events %s", peer.Write(e.state()["events"]))
			e.alive(r, 4)
		}),
		with(target, "replay/after_reconnect", "5.10", func(e *env) {
			r := e.join()
			first := e.event(r, 1)
			e.ack(r, 1)
			r = e.again(r)
			e.send(r, first)
			e.ack(r, 1)
			e.Check(peer.Int(peer.List(e.state(), "events")[0], "deliveryCount") == 2, "deliveryCount")
		}),
		with(target, "replay/after_restart", "8.7", func(e *env) {
			r := e.join()
			first := e.event(r, 1)
			e.ack(r, 1)
			e.restart(peer.M{})
			r = e.again(r)
			e.send(r, first)
			e.ack(r, 1)
			e.Check(peer.Int(peer.List(e.state(), "events")[0], "deliveryCount") == 2, "deliveryCount")
			e.send(r, peer.Merge(first, peer.M{"x": 1}))
			e.closed(r.Sock, "a changed replay")
			e.fault("source_event_replay_conflict")
		}),
		with(target, "replay/other_negotiated_version_conflicts", "5.10 (run)", func(e *env) {
			r := e.joinV1()
			m := e.event(r, 1)
			e.ack(r, 1)
			r = e.join()
			m["version"] = 2
			e.send(r, m)
			e.closed(r.Sock, "a replay under another version")
			e.fault("source_event_replay_conflict")
		}),
		conflict("changed_payload", "5.6", peer.M{"a": 1}, setP(peer.M{"a": 2})),
		conflict("added_member", "appendix B 5", peer.M{"a": 1}, setP(peer.M{"a": 1, "b": nil})),
		conflict("removed_member", "appendix B 5", peer.M{"a": 1, "b": nil}, setP(peer.M{"a": 1})),
		conflict("unknown_envelope_member", "appendix B 5", peer.M{}, func(env, _ peer.M) { env["note"] = "x" }),
		conflict("unknown_event_member", "appendix B 5", peer.M{}, func(_, ev peer.M) { ev["note"] = "x" }),
		conflict("changed_priority", "5.6", peer.M{}, func(_, ev peer.M) { ev["priority"] = 2 }),
		conflict("changed_emittedAt", "5.6", peer.M{}, func(_, ev peer.M) { ev["emittedAt"] = "2026-01-02T03:04:05.007Z" }),
		conflict("changed_type", "5.6", peer.M{}, func(_, ev peer.M) { ev["eventType"] = "harness.exited" }),
		conflict("array_order", "5.6", peer.M{"a": peer.A{1, 2}}, setP(peer.M{"a": peer.A{2, 1}})),
		conflict("string_for_number", "5.6", peer.M{"a": 1}, setP(peer.M{"a": "1"})),
		conflict("null_for_false", "5.6", peer.M{"a": nil}, setP(peer.M{"a": false})),
		conflict("lone_surrogates_differ", "3.9", peer.Raw(`{"a":"\ud83c"}`), setP(peer.Raw(`{"a":"\ud83d"}`))),
		conflict("lone_surrogate_is_not_U+FFFD", "3.9", peer.Raw(`{"a":"\ud83c"}`), setP(peer.Raw(`{"a":"\ufffd"}`))),
		conflict("composed_and_decomposed_differ", "3.9", peer.M{"a": "\u00e9"}, setP(peer.M{"a": "e\u0301"})),
		conflict("proto_member_is_compared", "appendix B 4 (run)", peer.Raw(`{"__proto__":{"a":1}}`), setP(peer.Raw(`{"__proto__":{"a":2}}`))),
		conflict("proto_member_dropped", "appendix B 4 (run)", peer.Raw(`{"__proto__":{"a":1}}`), setP(peer.M{})),
		conflict("keys_differ_in_case", "3.9", peer.M{"a": 1}, setP(peer.M{"A": 1})),
		same("member_order", "5.6", `{"b":1,"a":{"d":[],"c":{}}}`, ` { "a" : { "c" : { } , "d" : [ ] } , "b" : 1 } `),
		same("number_spelling", "3.9", `{"n":[1,100,0,1e21,0.0001]}`, `{"n":[1.0,1E2,-0,1000000000000000000000,1e-4]}`),
		same("beyond_2_to_53", "appendix B 3", `{"n":9007199254740992}`, `{"n":9007199254740993}`),
		same("string_escapes", "3.9", `{"s":"\u0041\/\u00e9\ud83c\udf00\u2028"}`, peer.Raw("{\"s\":\"A/\u00e9\U0001F300\u2028\"}")),
		same("duplicate_members_last_wins", "appendix B 4", `{"a":1,"a":2,"b":{"c":0,"c":1}}`, `{"a":2,"b":{"c":1}}`),
		limit("depth_64", nested(61), true),
		limit("depth_65", nested(62), false),
		limit("nodes_10000", wide(peer.CanonicalMaxNodes-base), true),
		limit("nodes_10001", wide(peer.CanonicalMaxNodes-base+1), false),
	}
}
