"""The sizes of a catalog's files, for whoever only wants to know what they are like.

Reads the file of a catalog that a mount may be using, without entering it as a user.
"""

import sqlite3
from array import array
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from penstock.errors import PenstockError


def read_sizes(catalog: Path, most: int) -> "array[int]":
    """About `most` at the most: of more files every so-manieth, in the order of their numbers."""
    try:
        # as_uri() would refuse a relative path, and a plain one may hold `?` and `%`.
        address = f"file:{quote(str(catalog))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=60)) as database:
            last: int = database.execute("SELECT max(ino) FROM nodes").fetchone()[0]
            # Numbers of directories and of what is gone make a sample a little smaller.
            step = max(1, -(-last // most))
            rows = database.execute(
                "SELECT size FROM nodes NOT INDEXED "  # the one by name would jump about
                "WHERE ino % ? = 0 AND dead = 0 AND size IS NOT NULL",
                (step,),
            )
            return array("q", (size for (size,) in rows))
    except sqlite3.Error as error:
        raise PenstockError(f"{catalog}: {error}") from error
