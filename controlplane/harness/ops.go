package harness

import (
	"context"
	"errors"

	"bowline/controlplane/authority"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

func (h *harness) ticket(ctx context.Context, req canonjson.Value) ([]canonjson.Member, error) {
	ttl, err := millis(req, "ttlMs", prp.TicketLifetimeDefault)
	if err != nil {
		return nil, err
	}
	ticket, err := h.up.session.IssueTicket(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return []canonjson.Member{member("ticket", canonjson.StringValue(ticket))}, nil
}

func (h *harness) queue(ctx context.Context, req canonjson.Value) ([]canonjson.Member, error) {
	commandType, ok := req.Get("type").AsString()
	if !ok {
		return nil, errors.New("type is not a string")
	}
	c := authority.Command{Type: commandType, Payload: req.Get("payload")}
	if id := req.Get("commandId"); id.Exists() && !id.IsNull() {
		if c.ID, ok = id.AsString(); !ok || c.ID == "" {
			return nil, errors.New("commandId is not a string")
		}
	}
	if deliver := req.Get("deliver"); deliver.Exists() && !deliver.IsNull() {
		if c.Deliver, ok = deliver.AsBool(); !ok {
			return nil, errors.New("deliver is not a boolean")
		}
	}
	id, err := h.up.session.Queue(ctx, c)
	if err != nil {
		return nil, err
	}
	return []canonjson.Member{member("commandId", canonjson.StringValue(id))}, nil
}

func (h *harness) state() []canonjson.Member {
	s := h.up.session.Snapshot()
	fault := canonjson.NullValue()
	if f := s.Fault; f != nil {
		fault = canonjson.ObjectValue(
			member("code", canonjson.StringValue(f.Code())),
			member("reason", canonjson.StringValue(f.Reason)),
			member("recovery", canonjson.StringValue(f.Recovery())),
		)
	}
	commands := make([]canonjson.Value, 0, len(s.Commands))
	for i := range s.Commands {
		c := &s.Commands[i]
		result := canonjson.NullValue()
		if len(c.Result) > 0 {
			v, err := canonjson.Parse(c.Result)
			if err != nil {
				panic("bug: harness: stored result does not parse")
			}
			result = v
		}
		commands = append(commands, canonjson.ObjectValue(
			member("commandId", canonjson.StringValue(c.CommandID)),
			member("controllerSeq", canonjson.IntValue(c.ControllerSeq)),
			member("type", canonjson.StringValue(c.Type)),
			member("status", canonjson.StringValue(c.Status)),
			member("result", result),
		))
	}
	events := make([]canonjson.Value, 0, len(s.Events))
	for _, e := range s.Events {
		events = append(events, canonjson.ObjectValue(
			member("sourceSeq", canonjson.IntValue(e.SourceSeq)),
			member("sourceEventId", canonjson.StringValue(e.SourceEventID)),
			member("eventType", canonjson.StringValue(e.EventType)),
			member("deliveryCount", canonjson.IntValue(e.DeliveryCount)),
		))
	}
	return []canonjson.Member{
		member("ackedSourceSeq", canonjson.IntValue(s.Session.AckedSourceSeq)),
		member("connections", canonjson.IntValue(int64(s.Connections))),
		member("malformedFrames", canonjson.IntValue(s.Session.MalformedFrames)),
		member("fault", fault),
		member("faults", canonjson.IntValue(int64(h.faults+s.Faults))),
		member("settled", canonjson.BoolValue(s.Settled)),
		member("tools", canonjson.IntValue(int64(s.Tools))),
		member("commands", canonjson.ArrayValue(commands...)),
		member("events", canonjson.ArrayValue(events...)),
	}
}
