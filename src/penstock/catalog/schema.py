"""The tables of a catalog."""

import time

ROOT = 1
SCHEMA_VERSION = 1
# Keys in `meta` of a catalog that was rebuilt:
INCOMPLETE = "incomplete"  # present until all sources were listed again
CHANGES_FROM = "changes_from"  # changes with a lower number are lost

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE nodes (
    ino INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,
    name BLOB NOT NULL,
    source INTEGER NOT NULL,      -- number of the source; -1 for none
    size INTEGER,                 -- NULL for a directory
    mtime INTEGER NOT NULL,       -- nanoseconds
    version TEXT,
    dead INTEGER NOT NULL         -- gone from the listing; the kernel may still hold it
);
CREATE TABLE directories (ino INTEGER PRIMARY KEY, path BLOB NOT NULL);  -- path inside its store
CREATE TABLE hidden (key TEXT NOT NULL, reason TEXT NOT NULL);  -- replaced by hidden_of
CREATE TABLE changes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, parent INTEGER NOT NULL, name BLOB NOT NULL,
    buried INTEGER NOT NULL       -- the node that died; 0 if the name is new
);
"""
SOURCES_SCHEMA = """
CREATE TABLE IF NOT EXISTS sources (
    number INTEGER PRIMARY KEY,
    path TEXT NOT NULL,           -- where its tree begins; '' for the root
    identity TEXT NOT NULL,
    present INTEGER NOT NULL,     -- is it in the tree, if only as an empty directory?
    files INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    listed_at REAL,               -- NULL: never
    covered TEXT NOT NULL,        -- JSON: paths of its own that other sources hid at that time
    hidden TEXT NOT NULL,         -- JSON: how many of its objects are hidden for each reason
    UNIQUE (path, identity)
);
CREATE TABLE IF NOT EXISTS hidden_of (
    source INTEGER NOT NULL, key TEXT NOT NULL, reason TEXT NOT NULL
);
"""
INDEXES = """
CREATE UNIQUE INDEX nodes_by_name ON nodes (parent, name) WHERE dead = 0;
CREATE INDEX nodes_dead ON nodes (dead) WHERE dead = 1;
"""


def new_catalog(*, indexed: bool) -> str:
    """Return the SQL that creates a catalog with an empty root."""
    return (
        SCHEMA
        + SOURCES_SCHEMA
        + (INDEXES if indexed else "")
        + f"INSERT INTO nodes VALUES ({ROOT}, 0, x'', -1, NULL, {time.time_ns()}, NULL, 0);"
        + f"INSERT INTO directories VALUES ({ROOT}, x'');"
        + f"PRAGMA user_version = {SCHEMA_VERSION};"
    )
