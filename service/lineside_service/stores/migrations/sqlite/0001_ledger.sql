-- What the store knows about itself: member_secret (random bytes), opened_by (incarnation of the last owner).
CREATE TABLE meta (
    name  TEXT PRIMARY KEY NOT NULL,
    value BLOB NOT NULL
) WITHOUT ROWID;

-- One keyed piece of work per row. Times are Unix seconds, NULL = not yet. `bytes` is what the row costs its
-- tenant's bound; alerted_s is when an UNKNOWN row was reported for its age and cut.
CREATE TABLE ledger (
    id              BLOB PRIMARY KEY NOT NULL,
    tenant          TEXT NOT NULL,
    tool            TEXT NOT NULL,
    key             TEXT NOT NULL,
    call_id         TEXT NOT NULL,
    fingerprint     BLOB NOT NULL,
    state           TEXT NOT NULL,
    incarnation     TEXT NOT NULL,
    idempotency     TEXT NOT NULL,
    claimed_s       REAL NOT NULL,
    claim_expires_s REAL NOT NULL,
    version         INTEGER NOT NULL,
    members         BLOB,
    attempts        INTEGER NOT NULL,
    first_started_s REAL,
    first_send_s    REAL,
    ended_s         REAL,
    expires_s       REAL,
    result          BLOB,
    tool_error      INTEGER NOT NULL,
    failure_kind    TEXT,
    failure_message TEXT NOT NULL,
    failure_reason  TEXT NOT NULL,
    record          BLOB NOT NULL,
    ever_unknown    INTEGER NOT NULL,
    settled_by      TEXT,
    settled_reason  TEXT NOT NULL,
    settled_s       REAL,
    bytes           INTEGER NOT NULL,
    alerted_s       REAL
);

CREATE UNIQUE INDEX ledger_call_id ON ledger (call_id);
CREATE INDEX ledger_expires ON ledger (expires_s) WHERE expires_s IS NOT NULL;
CREATE INDEX ledger_running ON ledger (call_id) WHERE state = 'running';
CREATE INDEX ledger_unknown ON ledger (call_id) WHERE state = 'unknown';
CREATE INDEX ledger_unalerted ON ledger (coalesce(ended_s, claimed_s))
    WHERE state = 'unknown' AND alerted_s IS NULL;
