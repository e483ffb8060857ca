package sqlite

import (
	"bytes"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"bowline/controlplane/store"
	"bowline/wire"
)

// known is what the writer remembers of a session, so that the common
// transaction costs one small update and its inserts.
type known struct {
	num   int64
	tail  tail
	fixed store.SessionRow // zero until written or compared once
}

// knownMax bounds the memory of the sessions map; past it the map is emptied.
const knownMax = 4096

func (w *writer) forget() { clear(w.sessions) }

// check panics on a transaction that no caller may make.
func check(tx *store.Tx) {
	if tx == nil {
		panic("bug: store: nil transaction")
	}
	if tx.Session == nil && tx.NewSession == nil && len(tx.Events)+len(tx.Redelivered)+len(tx.Commands) > 0 {
		panic("bug: store: events or commands without a session")
	}
	if tx.Session != nil && tx.NewSession != nil && tx.Session.ID != tx.NewSession.ID {
		panic("bug: store: two sessions in one transaction")
	}
	for i := range tx.Events {
		if o := tx.Events[i].Origin; o != store.OriginRunner && o != store.OriginControlPlane {
			panic("bug: store: event of origin " + o)
		}
	}
}

// size is the bytes of a transaction's bodies.
func size(tx *store.Tx) int {
	n := 0
	for i := range tx.Events {
		n += len(tx.Events[i].Body)
	}
	for i := range tx.Commands {
		n += len(tx.Commands[i].Record) + len(tx.Commands[i].Result)
	}
	return n
}

// steps applies a transaction and remembers whether it has written.
type steps struct {
	w     *writer
	wrote bool

	first int64    // number of the first event
	next  tail     // of the session's log with the events in it
	full  []closed // chunks they fill
}

func (s *steps) exec(id stmtID, args ...any) error {
	s.wrote = true
	_, err := s.w.eng.exec(id, args...)
	return err
}

// must runs a statement that refuses by touching no row.
func (s *steps) must(id stmtID, refuse func() *wire.Error, args ...any) error {
	res, err := s.w.eng.exec(id, args...)
	if err != nil {
		s.wrote = true
		return err
	}
	switch n, err := res.RowsAffected(); {
	case err != nil:
		s.wrote = true
		return fmt.Errorf("store: rows affected: %w", err)
	case n == 0:
		return refuse()
	}
	s.wrote = true
	return nil
}

func keyUsed() *wire.Error   { return wire.Errorf(wire.CodeConflict, "the idempotency key was used") }
func runExists() *wire.Error { return wire.Errorf(wire.CodeConflict, "a run with this id exists") }
func noSuchRun() *wire.Error { return wire.Errorf(wire.CodeNotFound, "no such run") }
func ownerMoved() *wire.Error {
	return wire.Errorf(wire.CodeConflict, "the session is unknown or has a newer owner")
}

// apply writes tx. What can be refused comes first, the likeliest first of
// all, so that a refusal mostly finds nothing to undo. Deletions come before
// insertions: a credential in both ends up present.
func (w *writer) apply(tx *store.Tx) (wrote bool, err error) {
	s := &steps{w: w}
	err = s.all(tx)
	return s.wrote, err
}

func (s *steps) all(tx *store.Tx) error {
	if r := tx.Idempotency; r != nil {
		if err := s.must(stmtIdempotencyInsert, keyUsed, r.Key, r.BodyHash[:], r.RunID, timeArg(r.CreatedAt)); err != nil {
			return err
		}
	}
	if tx.NewRun != nil {
		if err := s.run(stmtRunInsert, tx.NewRun, runExists); err != nil {
			return err
		}
	}
	var k *known
	if tx.NewSession != nil {
		n, err := s.newSession(tx.NewSession, tx)
		if err != nil {
			return err
		}
		k = n
	}
	if tx.Session != nil {
		n, err := s.session(tx.Session, tx)
		if err != nil {
			return err
		}
		k = n
	}
	if tx.Run != nil {
		if err := s.run(stmtRunUpdate, tx.Run, noSuchRun); err != nil {
			return err
		}
	}
	if id := tx.BumpGeneration; id != "" {
		k, err := s.lookup(id)
		if err != nil {
			return err
		}
		if k == nil {
			return wire.Errorf(wire.CodeNotFound, "no such session")
		}
		if err := s.exec(stmtBumpGeneration, k.num); err != nil {
			return err
		}
	}
	if k != nil {
		if err := s.log(k, tx); err != nil {
			return err
		}
	}
	if err := s.credentials(tx); err != nil {
		return err
	}
	return s.rest(tx)
}

// lookup finds a session's number, or gives nil if there is no such session.
func (s *steps) lookup(id string) (*known, error) {
	if k := s.w.sessions[id]; k != nil {
		return k, nil
	}
	var row [3]driver.Value
	ok, err := s.w.eng.lookup(stmtSessionTail, row[:], id)
	if err != nil || !ok {
		return nil, err
	}
	num, _ := row[0].(int64)
	seq, _ := row[1].(int64)
	list, _ := row[2].([]byte) // NULL when empty
	t, err := readTail(seq, list)
	if err != nil {
		// Of this session alone: its writes are refused, the others go on.
		return nil, damaged(seq)
	}
	k := s.remember(id, num)
	k.tail = t
	return k, nil
}

func (s *steps) remember(id string, num int64) *known {
	if len(s.w.sessions) >= knownMax {
		clear(s.w.sessions)
	}
	k := &known{num: num}
	s.w.sessions[id] = k
	return k
}

func (s *steps) newSession(r *store.SessionRow, tx *store.Tx) (*known, error) {
	// With Session beside it the events are that one's to number.
	if tx.Session == nil {
		if err := s.number(&known{}, tx); err != nil {
			return nil, err
		}
	}
	identity, err := json.Marshal(r.Identity)
	if err != nil {
		panic("bug: store: identity: " + err.Error())
	}
	var res driver.Result
	res, err = s.w.eng.exec(stmtSessionInsert, r.ID, r.Identity.RunID, r.Profile, identity, r.RunnerVersion, r.RunnerDigest,
		int64(r.LeaseTTL), blobArg(r.RunAttachTemplate))
	if err != nil {
		s.wrote = true
		return nil, err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		return nil, wire.Errorf(wire.CodeConflict, "session %s exists", r.ID)
	}
	s.wrote = true
	if err != nil {
		return nil, fmt.Errorf("store: rows affected: %w", err)
	}
	num, err := res.LastInsertId()
	if err != nil {
		return nil, fmt.Errorf("store: number of the new session: %w", err)
	}
	kept := s.remember(r.ID, num)
	kept.fixed = fixedPart(r)
	kept.tail = s.next
	return kept, s.exec(stmtHeadInsert, headArgs(r, kept)...)
}

func (s *steps) session(r *store.SessionRow, tx *store.Tx) (*known, error) {
	k, err := s.lookup(r.ID)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return nil, ownerMoved()
	}
	if err := s.number(k, tx); err != nil {
		return nil, err
	}
	moved := known{num: k.num, tail: s.next}
	if err := s.must(stmtHeadUpdate, ownerMoved, headArgs(r, &moved)...); err != nil {
		return nil, err
	}
	k.tail = s.next
	if sameFixed(&k.fixed, r) {
		return k, nil
	}
	identity, err := json.Marshal(r.Identity)
	if err != nil {
		panic("bug: store: identity: " + err.Error())
	}
	k.fixed = fixedPart(r)
	return k, s.exec(stmtSessionUpdate, r.Identity.RunID, r.Profile, identity, r.RunnerVersion, r.RunnerDigest,
		int64(r.LeaseTTL), blobArg(r.RunAttachTemplate), k.num)
}

// number gives the events of tx their numbers and works out the log's next
// tail. Events that do not continue the log are refused before anything is
// written.
func (s *steps) number(k *known, tx *store.Tx) error {
	for i := range tx.Events {
		if want := k.tail.seq + 1 + int64(i); tx.Events[i].Seq != want {
			return wire.Errorf(wire.CodeConflict, "event %d does not continue the log, the next is %d", tx.Events[i].Seq, want)
		}
	}
	s.first = s.w.nextEvent
	s.w.nextEvent += int64(len(tx.Events))
	s.next, s.full = k.tail, nil
	if len(tx.Events) > 0 {
		s.next, s.full = k.tail.extend(len(tx.Events), s.first)
	}
	return nil
}

// fixedPart is what the sessions table holds of r. The template is copied: a
// caller that later changed its bytes in place would seem to have changed
// nothing.
func fixedPart(r *store.SessionRow) store.SessionRow {
	return store.SessionRow{
		ID: r.ID, Profile: r.Profile, Identity: r.Identity, RunnerVersion: r.RunnerVersion, RunnerDigest: r.RunnerDigest,
		LeaseTTL: r.LeaseTTL, RunAttachTemplate: bytes.Clone(r.RunAttachTemplate),
	}
}

func sameFixed(a, b *store.SessionRow) bool {
	return a.ID == b.ID && a.Profile == b.Profile && a.Identity == b.Identity && a.RunnerVersion == b.RunnerVersion &&
		a.RunnerDigest == b.RunnerDigest && a.LeaseTTL == b.LeaseTTL &&
		(a.RunAttachTemplate == nil) == (b.RunAttachTemplate == nil) && bytes.Equal(a.RunAttachTemplate, b.RunAttachTemplate)
}

func headArgs(r *store.SessionRow, k *known) []any {
	var pinned any
	if len(r.Pinned) > 0 {
		pinned = jsonArg(r.Pinned)
	}
	return []any{
		r.Epoch, r.HeadSeq, r.AckedSourceSeq, r.ConnectionCount, r.ReplayDeliveries, r.DuplicateCommandResults,
		r.FreshBootstraps, r.MalformedFrames, r.LastLeaseID, r.LastLeaseExpiresAtMs, r.FaultReason, pinned, k.tail.seq, blobArg(k.tail.list),
		k.num, r.Generation,
	}
}

// log appends to the session's event log and command journal.
func (s *steps) log(k *known, tx *store.Tx) error {
	num := k.num
	for i := range tx.Events {
		r := &tx.Events[i]
		origin := originRunner
		if r.Origin == store.OriginControlPlane {
			origin = originControlPlane
		}
		if err := s.exec(stmtEventInsert, s.first+int64(i), num, r.Seq, r.RunID, origin, r.Type, r.At.UnixMilli(), boolArg(r.Late), r.SourceSeq,
			r.SourceEventID, int64(r.Priority), r.DeliveryCount, r.Digest[:], blobArg(r.Body)); err != nil {
			return err
		}
	}
	for _, c := range s.full {
		if err := s.exec(stmtChunkInsert, num, c.first, c.list); err != nil {
			return err
		}
	}
	for _, seq := range tx.Redelivered {
		if err := s.exec(stmtRedelivery, num, seq); err != nil {
			return err
		}
	}
	for i := range tx.Commands {
		r := &tx.Commands[i]
		if err := s.exec(stmtCommandUpsert, num, r.ControllerSeq, r.CommandID, r.Type, blobArg(r.Record), r.Status,
			blobArg(r.Result), r.DeliveryCount, timeArg(r.QueuedAt), timeArg(r.DoneAt)); err != nil {
			return err
		}
	}
	return nil
}

func (s *steps) credentials(tx *store.Tx) error {
	for _, id := range tx.DropTickets {
		if err := s.exec(stmtTicketDelete, id); err != nil {
			return err
		}
	}
	for _, id := range tx.DropLeases {
		if err := s.exec(stmtLeaseDelete, id); err != nil {
			return err
		}
	}
	for i := range tx.Tickets {
		r := &tx.Tickets[i]
		if err := s.exec(stmtTicketUpsert, r.CredentialID, r.RecordID, r.AuthKey[:], r.SessionID, r.RunID, jsonArg(r.Identity),
			r.RunnerVersion, r.RunnerDigest, r.ExpiresAtMs, r.UsedAtMs, r.CreatedAtMs); err != nil {
			return err
		}
	}
	for i := range tx.Leases {
		r := &tx.Leases[i]
		if err := s.exec(stmtLeaseUpsert, r.CredentialID, r.RecordID, r.AuthKey[:], r.LeaseID, r.SessionID, jsonArg(r.Identity),
			int64(r.ProtocolVersion), r.ExpiresAtMs, r.RevocationEpoch, r.RevokedAtMs); err != nil {
			return err
		}
	}
	return nil
}

func (s *steps) run(id stmtID, r *store.RunRow, refuse func() *wire.Error) error {
	var labels any
	if r.Labels != nil {
		labels = jsonArg(r.Labels)
	}
	return s.must(id, refuse, r.SessionID, r.Status, boolArg(!store.Terminal(r.Status)), r.Reason, r.Driver, r.Placement,
		r.Workspace, r.Permission, labels, blobArg(r.Request), blobArg(r.Result), timeArg(r.CreatedAt), timeArg(r.StartedAt),
		timeArg(r.EndedAt), timeArg(r.CancelAt), blobArg(r.Conductor), r.ID)
}

func (s *steps) rest(tx *store.Tx) error {
	if r := tx.Launch; r != nil {
		if err := s.exec(stmtLaunchUpsert, r.RunID, int64(r.Attempt), int64(r.PID), int64(r.StartTicks), //nolint:gosec // kept bit by bit
			r.BootID, timeArg(r.StartedAt), timeArg(r.ExitedAt), r.Exit); err != nil {
			return err
		}
	}
	if r := tx.Token; r != nil {
		if err := s.exec(stmtTokenUpsert, r.ID, r.Hash[:], r.Name, jsonArg(r.Scopes), timeArg(r.CreatedAt), timeArg(r.ExpiresAt),
			timeArg(r.RevokedAt)); err != nil {
			return err
		}
	}
	for i := range tx.Audit {
		r := &tx.Audit[i]
		if err := s.exec(stmtAuditInsert, timeArg(r.At), r.Actor, r.Action, r.Target, blobArg(r.Detail)); err != nil {
			return err
		}
	}
	names := make([]string, 0, len(tx.Settings))
	for name := range tx.Settings {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := s.exec(stmtSettingUpsert, name, tx.Settings[name]); err != nil {
			return err
		}
	}
	return nil
}

// Values of events.origin.
const (
	originRunner       int64 = 0
	originControlPlane int64 = 1
)

func boolArg(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// timeArg is milliseconds since 1970, or NULL for the zero time.
func timeArg(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// blobArg keeps nil apart from empty as far as SQLite can.
func blobArg(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// jsonArg is for values that cannot fail to marshal: maps and slices of
// strings, identities.
func jsonArg(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		panic("bug: store: marshal: " + err.Error())
	}
	return b
}
