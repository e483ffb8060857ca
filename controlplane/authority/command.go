package authority

import (
	"crypto/sha256"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// command is one journal entry with what is needed to compare it.
type command struct {
	row    store.CommandRow
	result canonical // of row.Result, when there is one
	call   canonical // semantic_tool.result only: what the call must equal
	// named: the result names this command's id, sequence and type (8.10).
	named bool
}

// canonical is the digest of a value's canonical form; ok is false when it has
// none (prp.md 3.9), and then it equals nothing.
type canonical struct {
	sum [sha256.Size]byte
	ok  bool
}

func canonicalOf(v canonjson.Value) canonical {
	c, _ := canonicalInto(nil, v)
	return c
}

// canonicalInto is canonicalOf with a buffer to write into, which it returns.
func canonicalInto(buf []byte, v canonjson.Value) (canonical, []byte) {
	text, err := canonjson.AppendCanonical(buf[:0], v)
	if err != nil {
		return canonical{}, buf
	}
	return canonical{sum: sha256.Sum256(text), ok: true}, text
}

func (c canonical) equals(d canonical) bool { return c.ok && d.ok && c.sum == d.sum }

func (c *command) wireForm() prp.Command {
	v, err := canonjson.Parse(c.row.Record)
	if err != nil {
		panic("bug: authority: stored command does not parse")
	}
	return prp.Command{
		CommandID: c.row.CommandID, ControllerSeq: c.row.ControllerSeq, Type: c.row.Type,
		IssuedAt: v.Get("issuedAt").Str(), Payload: v.Get("payload"),
	}
}

func (m *Machine) loadCommands(rows []store.CommandRow) error {
	for i := range rows {
		row := rows[i]
		v, err := canonjson.Parse(row.Record)
		switch {
		case row.ControllerSeq != int64(i+1):
			return damaged("command journal has a gap at %d", i+1)
		case err != nil:
			return damaged("command %d does not parse", i+1)
		case !prp.IsCommandType(row.Type) || !v.Get("payload").IsObject():
			return damaged("command %d is not a command", i+1)
		case m.byID[row.CommandID] != nil:
			return damaged("command id of %d is used twice", i+1)
		}
		c := &command{row: row}
		if row.Type == prp.CommandSemanticToolResult {
			c.call = callOfCommand(v.Get("payload"))
		}
		switch {
		case row.Status == prp.StatusPending:
			m.pending++
		case prp.IsResultStatus(row.Status):
			result, err := canonjson.Parse(row.Result)
			if err != nil {
				return damaged("result of command %d does not parse", i+1)
			}
			c.takeResult(result)
		default:
			return damaged("command %d has an unknown status", i+1)
		}
		m.commands = append(m.commands, c)
		m.byID[row.CommandID] = c
		if c.openTool() {
			m.toolsOpen++
		}
	}
	return nil
}

// openTool tells whether c keeps the session from being settled.
func (c *command) openTool() bool {
	return c.row.Type == prp.CommandSemanticToolResult && c.row.Status != prp.StatusCompleted
}

func (c *command) takeResult(whole canonjson.Value) {
	c.result = canonicalOf(whole)
	seq, ok := whole.Get("controllerSeq").SafeInt()
	c.named = ok && seq == c.row.ControllerSeq && whole.Get("commandId").Str() == c.row.CommandID &&
		whole.Get("commandType").Str() == c.row.Type
}

// Command is a request to journal one command.
type Command struct {
	ID      string // "" = given by its sequence
	Type    string
	Payload canonjson.Value // an object
	// Deliver sends the first pending command at once; without, nothing is sent
	// until the next result, reconnect or delivery (prp.md 5.4).
	Deliver bool
}

// Queue journals a command, or finds the equal one that was journaled before
// under the same id. Errors: wire.CodeInputInvalid (type, payload, id),
// wire.CodeCommandConflict (same id, other content), wire.CodeCommandTooLarge,
// wire.CodeTooManyRequests (the journal is full).
func (m *Machine) Queue(now time.Time, q Command) (store.CommandRow, error) {
	return m.journal(now, q, m.opt.JournalPending)
}

// journal is Queue with its own bound of pending commands, 0 = none: what
// others queue must not keep the conductor from ending a run.
func (m *Machine) journal(now time.Time, q Command, maxPending int) (store.CommandRow, error) {
	switch {
	case !prp.IsCommandType(q.Type):
		return store.CommandRow{}, wire.Errorf(wire.CodeInputInvalid, "type is not a command type")
	case !q.Payload.IsObject():
		return store.CommandRow{}, wire.Errorf(wire.CodeInputInvalid, "payload is not an object")
	case q.ID != "" && !prp.IsStableID(q.ID, prp.MaxShortIDLen):
		return store.CommandRow{}, wire.Errorf(wire.CodeInputInvalid, "commandId is not a stable id of at most %d characters", prp.MaxShortIDLen)
	}
	id := q.ID
	if id == "" {
		id = prp.CommandIDOf(int64(len(m.commands) + 1))
	}
	if c := m.byID[id]; c != nil {
		same, err := canonjson.Equal(c.wireForm().Payload, q.Payload)
		if err != nil || !same || c.row.Type != q.Type {
			return store.CommandRow{}, wire.Errorf(wire.CodeCommandConflict, "command %s: replay conflicts with persisted state", id)
		}
		if q.Deliver && c.row.Status == prp.StatusPending {
			m.deliver(now, m.current)
		}
		return c.row, nil
	}
	if n := m.opt.JournalTotal; n > 0 && len(m.commands) >= n {
		return store.CommandRow{}, wire.Errorf(wire.CodeTooManyRequests, "the journal holds its limit of %d commands", n).With("limit", n)
	}
	if n := maxPending; n > 0 && m.pending >= n {
		return store.CommandRow{}, wire.Errorf(wire.CodeTooManyRequests, "%d commands wait for their result, the limit", n).With("limit", n)
	}
	record := prp.Command{
		CommandID: id, ControllerSeq: int64(len(m.commands) + 1), Type: q.Type,
		IssuedAt: prp.FormatTime(now), Payload: q.Payload,
	}
	if err := record.CheckSize(); err != nil {
		return store.CommandRow{}, err
	}
	c := &command{row: store.CommandRow{
		ControllerSeq: record.ControllerSeq, CommandID: id, Type: q.Type,
		Record: record.Value().JSON(), Status: prp.StatusPending, QueuedAt: now,
	}}
	if q.Type == prp.CommandSemanticToolResult {
		c.call = callOfCommand(q.Payload)
	}
	m.commands = append(m.commands, c)
	m.byID[id] = c
	m.pending++
	if c.openTool() {
		m.toolsOpen++
	}
	touch(&m.staged.commands, c.row.ControllerSeq)
	if q.Deliver {
		m.deliver(now, m.current)
	}
	return c.row, nil
}

func (m *Machine) firstPending() *command {
	for m.pendFrom < len(m.commands) && m.commands[m.pendFrom].row.Status != prp.StatusPending {
		m.pendFrom++
	}
	if m.pendFrom == len(m.commands) {
		return nil
	}
	return m.commands[m.pendFrom]
}

// deliver sends the first pending command over l, again if it was sent before.
func (m *Machine) deliver(now time.Time, l *Link) {
	if l == nil || l.terminalSent {
		return
	}
	c := m.firstPending()
	if c == nil {
		return
	}
	m.delivered(c, l)
	m.send(now, l, prp.KindCommand, prp.CommandEnvelopeID(c.row.CommandID, c.row.DeliveryCount), c.row.Record)
}

func (m *Machine) delivered(c *command, l *Link) {
	c.row.DeliveryCount++
	touch(&m.staged.commands, c.row.ControllerSeq)
	if prp.IsTerminalCommand(c.row.Type) {
		l.terminalSent = true
	}
}

// commandResult takes a result (5.5). It is accepted for any journaled pending
// command, whether it was sent or not and in whatever order.
func (m *Machine) commandResult(now time.Time, l *Link, e prp.Envelope) error {
	r, err := prp.CommandResultOf(e.Payload)
	if err != nil {
		return err
	}
	c := m.byID[r.CommandID]
	if c == nil {
		return violation("command_result: no such command")
	}
	if prp.IsTerminalCommand(c.row.Type) {
		l.terminalSent = true // the runner ends, however it learned of the command
	}
	if c.row.Status != prp.StatusPending {
		same := canonicalOf(r.Whole)
		if !same.equals(c.result) {
			return violation("command_result: differs from the stored one")
		}
		m.head.DuplicateCommandResults++
		m.staged.head = true
		m.effect(Effect{Kind: EffectDupResult})
		m.resultAck(now, l, c)
		m.deliver(now, l)
		return nil
	}
	open := c.openTool()
	c.row.Status = r.Status
	c.row.Result = r.Whole.JSON()
	c.row.DoneAt = now
	c.takeResult(r.Whole)
	m.pending--
	if open && !c.openTool() {
		m.toolsOpen--
	}
	touch(&m.staged.commands, c.row.ControllerSeq)
	m.effect(Effect{Kind: EffectCommand, Type: c.row.Type, Status: r.Status, Seconds: now.Sub(c.row.QueuedAt).Seconds()})
	m.resultAck(now, l, c)
	if m.cond != nil {
		m.delivering = true
		m.condResult(now, c, r)
		m.delivering = false
	}
	m.deliver(now, l)
	return nil
}

// resultAck acknowledges the result of a terminal lifecycle command (5.2).
func (m *Machine) resultAck(now time.Time, l *Link, c *command) {
	if !prp.IsTerminalCommand(c.row.Type) {
		return
	}
	m.send(now, l, prp.KindCommandResultAck, prp.CommandResultAckEnvelopeID(c.row.ControllerSeq), prp.EncodeCommandResultAck(prp.CommandResult{
		CommandID: c.row.CommandID, CommandType: c.row.Type, ControllerSeq: c.row.ControllerSeq, Status: c.row.Status,
	}))
}
