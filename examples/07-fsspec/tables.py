"""pandas and plain fsspec over a mount: `python tables.py FOLDER` (the folder's path on it)."""

import argparse

import fsspec
import pandas


def main(url: str) -> None:
    files, _, [root] = fsspec.get_fs_token_paths(url)
    tables = sorted(files.glob(f"{root}/*.parquet"))

    # Only the columns asked for are read: the mount fetches the parts of the file that hold them.
    first = pandas.read_parquet(f"penstock://{tables[0]}", columns=["label"])
    print(f"first table: {len(first)} rows, labels {sorted(first['label'].unique().tolist())}")

    # Many files at once: the mount is told the whole list, and fetches them side by side.
    notes = files.cat(f"{root}/notes/*.txt")
    print(f"notes: {len(notes)} files, {sum(map(len, notes.values()))} bytes")

    # What a file is, for a cache of your own: another object has another ETag.
    about = files.info(tables[0])
    print(f"version {about['ETag']}, {about['size']} bytes, {about['cached']} of them cached")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url", help="penstock:///mnt/data")
    main(parser.parse_args().url)
