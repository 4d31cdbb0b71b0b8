"""Many prompts, one line of a jsonl file each: measured in shards, resumable, by any number of workers.

1. `lines` reads the file and cuts it into shards; every line is a question with its metadata, or an error.
2. `batches` puts the lines of a shard together by shape, `rows` measures them.
3. `store` keeps shards as a Parquet data set (`parquet`), beside a `manifest`.
4. `sweep` is the verb; `results` reads a sweep back, and `mean` averages it.
5. `plan` says beforehand what a sweep will take.
"""

from typing import Final

BATCH: Final = 64  # pairs that are run together, at most
