"""WikiText from the Hugging Face hub, as the files its authors published. Needs the extra `lm`."""

from __future__ import annotations

import re
from pathlib import Path

from relational_rnn.tasks.text.corpora import Corpus, wikitext
from relational_rnn.tasks.text.token_file import publish, temporary

REPOSITORY = "Salesforce/wikitext"
SIZES = {  # lines of each split, as published
    "wikitext-2": {"train": 36_718, "valid": 3_760, "test": 4_358},
    "wikitext-103": {"train": 1_801_350, "valid": 3_760, "test": 4_358},
}
_HUB_NAMES = {"train": "train", "valid": "validation", "test": "test"}


def download_wikitext(name: str, folder: str | Path, *, revision: str = "main") -> Corpus:
    """Download wikitext-2 or wikitext-103 into a folder as wiki.*.tokens; files of it that are there stay."""
    if name not in SIZES:
        raise ValueError(f"name={name!r} is not allowed; allowed: {', '.join(SIZES)}")
    folder = Path(folder)
    targets = {split: folder / f"wiki.{split}.tokens" for split in SIZES[name]}
    for split, path in targets.items():
        if path.is_file() and (lines := _lines(path)) != SIZES[name][split]:  # of the other one, perhaps
            allowed = f"{SIZES[name][split]}, as in {name}, or another folder"
            raise ValueError(f"{path} is there and has {lines} lines; allowed: {allowed}")
    if not all(path.is_file() for path in targets.values()):
        try:
            import huggingface_hub
            import pyarrow.parquet as parquet
        except ImportError as error:
            extra = 'pip install "relational-rnn[lm]"'
            raise ImportError(f"downloading WikiText needs {error.name}: {extra}", name=error.name) from error
        folder.mkdir(parents=True, exist_ok=True)
        listed = huggingface_hub.list_repo_files(REPOSITORY, repo_type="dataset", revision=revision)
        for split, path in targets.items():
            if path.is_file():
                continue
            # Names are the server's; only their order is used, and the files are written under ours.
            wanted = re.compile(rf"{name}-v1/{_HUB_NAMES[split]}-\d{{5}}-of-\d{{5}}\.parquet")
            parts = sorted(part for part in listed if wanted.fullmatch(part))
            if not parts:
                raise ValueError(f"{REPOSITORY} at {revision!r} has no file like {wanted.pattern}")
            with temporary(path).open("w", encoding="utf-8", newline="\n") as file:
                lines = 0
                for part in parts:
                    local = huggingface_hub.hf_hub_download(
                        REPOSITORY, part, repo_type="dataset", revision=revision
                    )
                    for batch in parquet.ParquetFile(local).iter_batches(columns=["text"]):
                        for line in batch.column(0).to_pylist():  # with its line end, or "" for a blank line
                            file.write(line.removesuffix("\n") + "\n")
                        lines += batch.num_rows
            if lines != SIZES[name][split]:
                temporary(path).unlink()
                wanted_lines = SIZES[name][split]
                raise ValueError(
                    f"{name}: the split {split!r} came with {lines} lines; allowed: {wanted_lines}"
                )
            publish(path)
    return wikitext(folder)


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))
