"""pandas and plain fsspec over a mount: `python tables.py FOLDER` (the folder's path on it)."""

import argparse

import fsspec
import pandas


def main(url: str) -> None:
    files, _, [root] = fsspec.get_fs_token_paths(url)
    tables = sorted(files.glob(f"{root}/*.parquet"))

    # pandas reads only these columns, so the mount fetches only the parts that hold them.
    first = pandas.read_parquet(f"penstock://{tables[0]}", columns=["label"])
    print(f"first table: {len(first)} rows, labels {sorted(first['label'].unique().tolist())}")

    # Many files at once: the mount gets the whole list and fetches them in parallel.
    notes = files.cat(f"{root}/notes/*.txt")
    print(f"notes: {len(notes)} files, {sum(map(len, notes.values()))} bytes")

    # Identify a file, for your own cache: another object has another ETag.
    about = files.info(tables[0])
    print(f"version {about['ETag']}, {about['size']} bytes, {about['cached']} of them cached")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url", help="penstock:///mnt/data")
    main(parser.parse_args().url)
