-- +goose Up

-- A session is two rows: what hardly ever changes, and what changes with
-- every acknowledgement. The hot row stays small, because SQLite rewrites a
-- whole row (and its overflow pages) on update.
CREATE TABLE sessions (
    num                 INTEGER PRIMARY KEY,
    id                  TEXT NOT NULL UNIQUE,
    run_id              TEXT NOT NULL,
    profile             TEXT NOT NULL,
    identity            BLOB NOT NULL,
    runner_version      TEXT NOT NULL,
    runner_digest       TEXT NOT NULL,
    lease_ttl_ns        INTEGER NOT NULL,
    run_attach_template BLOB
);
CREATE INDEX sessions_run ON sessions (run_id);

CREATE TABLE session_heads (
    session                   INTEGER PRIMARY KEY,
    generation                INTEGER NOT NULL,
    epoch                     INTEGER NOT NULL,
    head_seq                  INTEGER NOT NULL,
    acked_source_seq          INTEGER NOT NULL,
    connection_count          INTEGER NOT NULL,
    replay_deliveries         INTEGER NOT NULL,
    duplicate_command_results INTEGER NOT NULL,
    fresh_bootstraps          INTEGER NOT NULL,
    malformed_frames          INTEGER NOT NULL,
    last_lease_id             TEXT NOT NULL,
    last_lease_expires_at_ms  INTEGER NOT NULL,
    fault_reason              TEXT NOT NULL,
    pinned                    BLOB, -- JSON list of event numbers, NULL when empty
    log_seq                   INTEGER NOT NULL, -- seq of the last event in the log
    tail                      BLOB -- its open chunk, see chunks.go
);

-- Append-only by rowid. A table keyed by (session, seq) would move whole
-- bodies about when leaves split and is three times slower; an index on them
-- costs a third of the throughput. See chunks.go for what stands in its place.
CREATE TABLE events (
    num             INTEGER PRIMARY KEY,
    session         INTEGER NOT NULL,
    seq             INTEGER NOT NULL,
    run_id          TEXT NOT NULL,
    origin          INTEGER NOT NULL, -- 0 runner, 1 control_plane
    type            TEXT NOT NULL,
    at_ms           INTEGER NOT NULL,
    late            INTEGER NOT NULL,
    source_seq      INTEGER NOT NULL,
    source_event_id TEXT NOT NULL,
    priority        INTEGER NOT NULL,
    delivery_count  INTEGER NOT NULL,
    digest          BLOB NOT NULL,
    body            BLOB
);

CREATE TABLE event_chunks (
    session   INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    nums      BLOB NOT NULL,
    PRIMARY KEY (session, first_seq)
) WITHOUT ROWID;

-- Deliveries of a runner event after its first. Apart, so that the events
-- table is never updated and needs no index on source_seq.
CREATE TABLE redeliveries (
    session    INTEGER NOT NULL,
    source_seq INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    PRIMARY KEY (session, source_seq)
) WITHOUT ROWID;

CREATE TABLE commands (
    num            INTEGER PRIMARY KEY,
    session        INTEGER NOT NULL,
    controller_seq INTEGER NOT NULL,
    command_id     TEXT NOT NULL,
    type           TEXT NOT NULL,
    record         BLOB,
    status         TEXT NOT NULL,
    result         BLOB,
    delivery_count INTEGER NOT NULL,
    queued_at_ms   INTEGER,
    done_at_ms     INTEGER
);
CREATE UNIQUE INDEX commands_session_seq ON commands (session, controller_seq);

CREATE TABLE tickets (
    num            INTEGER PRIMARY KEY,
    credential_id  TEXT NOT NULL UNIQUE,
    record_id      TEXT NOT NULL,
    auth_key       BLOB NOT NULL,
    session_id     TEXT NOT NULL,
    run_id         TEXT NOT NULL,
    identity       BLOB NOT NULL,
    runner_version TEXT NOT NULL,
    runner_digest  TEXT NOT NULL,
    expires_at_ms  INTEGER NOT NULL,
    used_at_ms     INTEGER NOT NULL,
    created_at_ms  INTEGER NOT NULL
);
CREATE INDEX tickets_run ON tickets (run_id);
CREATE INDEX tickets_session ON tickets (session_id);

CREATE TABLE leases (
    num              INTEGER PRIMARY KEY,
    credential_id    TEXT NOT NULL UNIQUE,
    record_id        TEXT NOT NULL,
    auth_key         BLOB NOT NULL,
    lease_id         TEXT NOT NULL,
    session_id       TEXT NOT NULL,
    identity         BLOB NOT NULL,
    protocol_version INTEGER NOT NULL,
    expires_at_ms    INTEGER NOT NULL,
    revocation_epoch INTEGER NOT NULL,
    revoked_at_ms    INTEGER NOT NULL
);
CREATE INDEX leases_session ON leases (session_id);

-- num only grows, so a page cursor stays valid while runs are added.
CREATE TABLE runs (
    num           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT NOT NULL UNIQUE,
    session_id    TEXT NOT NULL,
    status        TEXT NOT NULL,
    open          INTEGER NOT NULL, -- 1 until the status is terminal
    reason        TEXT NOT NULL,
    driver        TEXT NOT NULL,
    placement     TEXT NOT NULL,
    workspace     TEXT NOT NULL,
    permission    TEXT NOT NULL,
    labels        BLOB,
    request       BLOB,
    result        BLOB,
    created_at_ms INTEGER,
    started_at_ms INTEGER,
    ended_at_ms   INTEGER,
    cancel_at_ms  INTEGER,
    conductor     BLOB
);
CREATE INDEX runs_status ON runs (status, num);
CREATE INDEX runs_open ON runs (num) WHERE open = 1;

CREATE TABLE launches (
    run_id        TEXT PRIMARY KEY NOT NULL,
    attempt       INTEGER NOT NULL,
    pid           INTEGER NOT NULL,
    start_ticks   INTEGER NOT NULL, -- the 64 bits of a uint64
    boot_id       TEXT NOT NULL,
    started_at_ms INTEGER,
    exited_at_ms  INTEGER,
    exit          TEXT NOT NULL
);

CREATE TABLE idempotency (
    key           TEXT PRIMARY KEY NOT NULL,
    body_hash     BLOB NOT NULL,
    run_id        TEXT NOT NULL,
    created_at_ms INTEGER
);

CREATE TABLE tokens (
    id            TEXT PRIMARY KEY NOT NULL,
    hash          BLOB NOT NULL UNIQUE,
    name          TEXT NOT NULL,
    scopes        BLOB NOT NULL,
    created_at_ms INTEGER,
    expires_at_ms INTEGER,
    revoked_at_ms INTEGER
);

CREATE TABLE audit (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms  INTEGER,
    actor  TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail BLOB
);

CREATE TABLE settings (
    name  TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
);
