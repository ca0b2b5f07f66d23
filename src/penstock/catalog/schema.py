"""The tables of a catalog, but for those of its sources."""

import time

from penstock.catalog import sources

ROOT = 1
SCHEMA_VERSION = 1
# In `meta`, of a catalog that was made anew and whose sources were not all listed since.
INCOMPLETE = "incomplete"
# In `meta`, of a catalog that was made anew: changes from before this number are lost.
CHANGES_FROM = "changes_from"

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE nodes (
    ino INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,
    name BLOB NOT NULL,
    source INTEGER NOT NULL,      -- which of the sources; -1 for none
    size INTEGER,                 -- NULL for a directory
    mtime INTEGER NOT NULL,       -- nanoseconds
    version TEXT,
    dead INTEGER NOT NULL         -- gone from the listing; the kernel may still hold it
);
CREATE TABLE directories (ino INTEGER PRIMARY KEY, path BLOB NOT NULL);  -- path inside its store
CREATE TABLE hidden (key TEXT NOT NULL, reason TEXT NOT NULL);  -- hidden_of has taken its place
CREATE TABLE changes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, parent INTEGER NOT NULL, name BLOB NOT NULL,
    buried INTEGER NOT NULL       -- the node that died; 0 if the name is new
);
"""
INDEXES = """
CREATE UNIQUE INDEX nodes_by_name ON nodes (parent, name) WHERE dead = 0;
CREATE INDEX nodes_dead ON nodes (dead) WHERE dead = 1;
"""


def new_catalog(*, indexed: bool) -> str:
    return (
        SCHEMA
        + sources.SCHEMA
        + (INDEXES if indexed else "")
        + f"INSERT INTO nodes VALUES ({ROOT}, 0, x'', -1, NULL, {time.time_ns()}, NULL, 0);"
        + f"INSERT INTO directories VALUES ({ROOT}, x'');"
        + f"PRAGMA user_version = {SCHEMA_VERSION};"
    )
