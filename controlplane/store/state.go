package store

// SessionState is what [Store.Session] loads: one consistent snapshot of a
// session and of everything that hangs on it.
type SessionState struct {
	Session  SessionRow
	Events   []EventRow   // newest runner events, ascending by Seq, at most the window asked for
	Commands []CommandRow // the whole journal, ascending by ControllerSeq
	Tickets  []TicketRow  // of this session, oldest first
	Leases   []LeaseRow   // of this session, oldest first
}
