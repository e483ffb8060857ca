package sqlite

// stmtID names one of the writer's prepared statements.
type stmtID int

const (
	stmtBegin stmtID = iota
	stmtCommit
	stmtRollback
	stmtSavepoint
	stmtRollbackTo
	stmtRelease
	stmtNextEvent
	stmtSessionTail
	stmtSessionInsert
	stmtSessionUpdate
	stmtHeadInsert
	stmtHeadUpdate
	stmtBumpGeneration
	stmtEventInsert
	stmtChunkInsert
	stmtRedelivery
	stmtCommandUpsert
	stmtTicketUpsert
	stmtTicketDelete
	stmtLeaseUpsert
	stmtLeaseDelete
	stmtRunInsert
	stmtRunUpdate
	stmtLaunchUpsert
	stmtIdempotencyInsert
	stmtTokenUpsert
	stmtAuditInsert
	stmtSettingUpsert
	stmtCount
)

// statements has the text of each. An insert that may meet its own key says
// DO NOTHING, so that a refusal is a row count and not an error.
//
//nolint:gochecknoglobals // a constant table
var statements = [stmtCount]string{
	stmtBegin:      `BEGIN IMMEDIATE`,
	stmtCommit:     `COMMIT`,
	stmtRollback:   `ROLLBACK`,
	stmtSavepoint:  `SAVEPOINT one`,
	stmtRollbackTo: `ROLLBACK TO one`,
	stmtRelease:    `RELEASE one`,

	stmtNextEvent:   `SELECT COALESCE(MAX(num), 0) + 1 FROM events`,
	stmtSessionTail: `SELECT s.num, h.log_seq, h.tail FROM sessions s JOIN session_heads h ON h.session = s.num WHERE s.id = ?`,
	stmtSessionInsert: `INSERT INTO sessions (id, run_id, profile, identity, runner_version, runner_digest, lease_ttl_ns, run_attach_template)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
	stmtSessionUpdate: `UPDATE sessions SET run_id = ?, profile = ?, identity = ?, runner_version = ?, runner_digest = ?,
		lease_ttl_ns = ?, run_attach_template = ? WHERE num = ?`,
	stmtHeadInsert: `INSERT INTO session_heads (epoch, head_seq, acked_source_seq, connection_count, replay_deliveries,
		duplicate_command_results, fresh_bootstraps, malformed_frames, last_lease_id, last_lease_expires_at_ms, fault_reason,
		pinned, log_seq, tail, session, generation)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
	stmtHeadUpdate: `UPDATE session_heads SET epoch = ?, head_seq = ?, acked_source_seq = ?, connection_count = ?,
		replay_deliveries = ?, duplicate_command_results = ?, fresh_bootstraps = ?, malformed_frames = ?, last_lease_id = ?,
		last_lease_expires_at_ms = ?, fault_reason = ?, pinned = ?, log_seq = ?, tail = ?
		WHERE session = ? AND generation = ?`,
	stmtBumpGeneration: `UPDATE session_heads SET generation = generation + 1 WHERE session = ?`,

	stmtEventInsert: `INSERT INTO events (num, session, seq, run_id, origin, type, at_ms, late, source_seq, source_event_id, priority,
		delivery_count, digest, body)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
	stmtChunkInsert: `INSERT INTO event_chunks (session, first_seq, nums) VALUES (?, ?, ?)`,
	stmtRedelivery: `INSERT INTO redeliveries (session, source_seq, count) VALUES (?, ?, 1)
		ON CONFLICT (session, source_seq) DO UPDATE SET count = count + 1`,
	stmtCommandUpsert: `INSERT INTO commands (session, controller_seq, command_id, type, record, status, result, delivery_count,
		queued_at_ms, done_at_ms)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (session, controller_seq) DO UPDATE SET command_id = excluded.command_id, type = excluded.type,
		record = excluded.record, status = excluded.status, result = excluded.result, delivery_count = excluded.delivery_count,
		queued_at_ms = excluded.queued_at_ms, done_at_ms = excluded.done_at_ms`,

	stmtTicketUpsert: `INSERT INTO tickets (credential_id, record_id, auth_key, session_id, run_id, identity, runner_version,
		runner_digest, expires_at_ms, used_at_ms, created_at_ms)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (credential_id) DO UPDATE SET record_id = excluded.record_id, auth_key = excluded.auth_key,
		session_id = excluded.session_id, run_id = excluded.run_id, identity = excluded.identity,
		runner_version = excluded.runner_version, runner_digest = excluded.runner_digest,
		expires_at_ms = excluded.expires_at_ms, used_at_ms = excluded.used_at_ms, created_at_ms = excluded.created_at_ms`,
	stmtTicketDelete: `DELETE FROM tickets WHERE credential_id = ?`,
	stmtLeaseUpsert: `INSERT INTO leases (credential_id, record_id, auth_key, lease_id, session_id, identity, protocol_version,
		expires_at_ms, revocation_epoch, revoked_at_ms)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (credential_id) DO UPDATE SET record_id = excluded.record_id, auth_key = excluded.auth_key,
		lease_id = excluded.lease_id, session_id = excluded.session_id, identity = excluded.identity,
		protocol_version = excluded.protocol_version, expires_at_ms = excluded.expires_at_ms,
		revocation_epoch = excluded.revocation_epoch, revoked_at_ms = excluded.revoked_at_ms`,
	stmtLeaseDelete: `DELETE FROM leases WHERE credential_id = ?`,

	stmtRunInsert: `INSERT INTO runs (session_id, status, open, reason, driver, placement, workspace, permission, labels, request,
		result, created_at_ms, started_at_ms, ended_at_ms, cancel_at_ms, conductor, id)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
	stmtRunUpdate: `UPDATE runs SET session_id = ?, status = ?, open = ?, reason = ?, driver = ?, placement = ?, workspace = ?,
		permission = ?, labels = ?, request = ?, result = ?, created_at_ms = ?, started_at_ms = ?, ended_at_ms = ?,
		cancel_at_ms = ?, conductor = ? WHERE id = ?`,
	stmtLaunchUpsert: `INSERT INTO launches (run_id, attempt, pid, start_ticks, boot_id, started_at_ms, exited_at_ms, exit)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (run_id) DO UPDATE SET attempt = excluded.attempt, pid = excluded.pid, start_ticks = excluded.start_ticks,
		boot_id = excluded.boot_id, started_at_ms = excluded.started_at_ms, exited_at_ms = excluded.exited_at_ms,
		exit = excluded.exit`,

	stmtIdempotencyInsert: `INSERT INTO idempotency (key, body_hash, run_id, created_at_ms) VALUES (?, ?, ?, ?)
		ON CONFLICT (key) DO NOTHING`,
	stmtTokenUpsert: `INSERT INTO tokens (id, hash, name, scopes, created_at_ms, expires_at_ms, revoked_at_ms)
		VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET hash = excluded.hash, name = excluded.name, scopes = excluded.scopes,
		created_at_ms = excluded.created_at_ms, expires_at_ms = excluded.expires_at_ms, revoked_at_ms = excluded.revoked_at_ms`,
	stmtAuditInsert:   `INSERT INTO audit (at_ms, actor, action, target, detail) VALUES (?, ?, ?, ?, ?)`,
	stmtSettingUpsert: `INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`,
}
