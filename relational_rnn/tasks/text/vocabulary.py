"""Words <-> ids. `<unk>` is 0, `<eos>` is 1, then words from the most frequent to the rarest.

The order does not depend on how the text was cut up for reading: equal counts are ordered by the word.
On disk: UTF-8 lines "word<TAB>count"; words hold no white space. The hash is over the words alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from relational_rnn.tasks.text.token_file import publish, temporary
from relational_rnn.tasks.text.tokenizers import EOS, UNK

UNK_ID, EOS_ID = 0, 1


class Vocabulary:
    """`words[i]` is the word of id i, `counts[i]` how often it stood in the text the vocabulary is from."""

    def __init__(self, words: Sequence[str], counts: Sequence[int]):
        self.words, self.counts = tuple(words), tuple(counts)
        if self.words[:2] != (UNK, EOS):
            raise ValueError(f"words={self.words[:2]!r}, ... are not allowed; allowed: {UNK}, {EOS}, ...")
        if len(self.words) != len(self.counts):
            raise ValueError(f"there are {len(self.counts)} counts; allowed: {len(self.words)}, one per word")

    @classmethod
    def from_counts(
        cls, counts: Iterable[tuple[str, int]], *, max_size: int | None = None, min_count: int = 1
    ) -> Vocabulary:
        """The words that occur `min_count` times, at most `max_size` of them with `<unk>` and `<eos>`.

        The count of `<unk>` is its own in the text and that of all words left out.
        """
        if max_size is not None and max_size < 2:
            raise ValueError(f"max_size={max_size} is not allowed; allowed: 2 or more, or None")
        if min_count < 1:
            raise ValueError(f"min_count={min_count} is not allowed; allowed: 1 or more")
        special, kept, total = {UNK: 0, EOS: 0}, [], 0
        for word, count in counts:
            total += count
            if word in special:
                special[word] += count
            elif count >= min_count:
                kept.append((word, count))
        kept.sort()
        kept.sort(key=lambda entry: entry[1], reverse=True)  # stable, and faster than one sort by two keys
        if max_size is not None:
            del kept[max_size - 2 :]
        unknown = total - special[EOS] - sum(count for _, count in kept)
        entries = [(UNK, unknown), (EOS, special[EOS]), *kept]
        return cls(*zip(*entries, strict=True))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def hash(self) -> bytes:
        """32 bytes that a token file carries, so that it is not read with another vocabulary."""
        return hashlib.sha256("\n".join(self.words).encode()).digest()

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self.ids.get(word, UNK_ID) for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        return [self.words[number] for number in ids]

    def save(self, path: Path) -> None:
        text = "".join(f"{word}\t{count}\n" for word, count in zip(self.words, self.counts, strict=True))
        with temporary(path).open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        publish(path)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        words, counts = [], []
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"vocabulary {path} is not UTF-8 at position {error.start}") from error
        if lines.pop():
            raise ValueError(f"vocabulary {path} is cut off: its last line has no end")
        for number, line in enumerate(lines, 1):
            word, _, count = line.partition("\t")
            if not word or not count.isdecimal():
                raise ValueError(
                    f"vocabulary {path}, line {number}: {line!r}; allowed: a word, a tab, a count"
                )
            words.append(word)
            counts.append(int(count))
        if len(set(words)) != len(words):
            raise ValueError(f"vocabulary {path} has a word twice")
        return cls(words, counts)
