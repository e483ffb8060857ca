package session

import (
	"context"

	"bowline/controlplane/authority"
	"bowline/controlplane/store"
	"bowline/wire"
	"bowline/wire/prp"
)

// Bounds of one page of events while a session is loaded: a whole window of
// large events would not fit into memory.
const (
	loadPageEvents = 512
	loadPageBytes  = 4 << 20
)

// load builds the machine of a stored session.
func load(ctx context.Context, cfg Config, id string) (*authority.Machine, error) {
	st, err := cfg.Store.Session(ctx, id, 0)
	if err != nil {
		return nil, err
	}
	run, err := cfg.Store.Run(ctx, st.Session.Identity.RunID)
	if err != nil {
		if wire.CodeOf(err) != wire.CodeNotFound {
			return nil, err
		}
		run = nil
	}
	m, err := authority.New(cfg.Options, st, run)
	if err != nil {
		return nil, err
	}
	for _, seq := range st.Session.Pinned {
		rows, err := cfg.Store.Events(ctx, id, seq-1, 1, prp.MaxFrameBytesLargest)
		if err != nil {
			return nil, err
		}
		if len(rows) != 1 || rows[0].Seq != seq {
			return nil, wire.Errorf(wire.CodeLogDamaged, "session %s: pinned event %d is missing", id, seq)
		}
		if err := m.Retain(&rows[0]); err != nil {
			return nil, err
		}
	}
	if err := loadWindow(ctx, cfg.Store, &st.Session, m); err != nil {
		return nil, err
	}
	return m, m.Loaded()
}

// loadWindow hands over the newest runner events. The host log numbers them and
// the control plane's own together, so an event's number there is never lower
// than its own.
func loadWindow(ctx context.Context, st store.Store, head *store.SessionRow, m *authority.Machine) error {
	oldest := max(0, head.AckedSourceSeq-authority.WindowSize)
	for after := oldest; after < head.HeadSeq; {
		rows, err := st.Events(ctx, head.ID, after, loadPageEvents, loadPageBytes)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return wire.Errorf(wire.CodeLogDamaged, "session %s: the log ends at %d, its head is %d", head.ID, after, head.HeadSeq)
		}
		for i := range rows {
			if row := &rows[i]; row.SourceSeq > oldest {
				if err := m.Retain(row); err != nil {
					return err
				}
			}
		}
		after = rows[len(rows)-1].Seq
	}
	return nil
}
