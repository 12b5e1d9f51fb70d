"""Writes parallel lines and checks their tokens against AutoTokenizer. Run by
scripts/check-translate-tokenizer."""

import pathlib
import sys
import unicodedata

from transformers import AutoTokenizer, PreTrainedTokenizerFast

sys.path.append(str(pathlib.Path(__file__).parent))
sys.path.append(str(pathlib.Path(__file__).parent.parent / "fixtures"))
from stream import Stream  # noqa: E402
from tokenizer import read_shard  # noqa: E402
from tokens import HAND_MADE, random_lines  # noqa: E402

# Exactly the characters with Unicode's White_Space property.
SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
SPECIAL = ["</s>", "a </s> b", "<unk><pad>", "<s>x</s>", "<<pad>>"]


def lines_of(text):
    return [" ".join(line.replace("\0", "").replace("\r", "\n").split("\n")) for line in text]


def read(path):
    """Reads a file unchanged. In text mode, Python would convert other line endings."""
    return path.read_bytes().decode()


def tokenizers_of(prepared):
    if (prepared / "tokenizer.json").exists():
        both = AutoTokenizer.from_pretrained(prepared)
        return both, both
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "split_special_tokens": True}
    files = [str(prepared / f"{side}_tokenizer.json") for side in ("source", "target")]
    return [PreTrainedTokenizerFast(tokenizer_file=file, **names) for file in files]


def main(what, scratch, *rest):
    scratch = pathlib.Path(scratch)
    sides = [scratch / "text.a", scratch / "text.b"]
    if what == "write":
        if rest:
            text = [read(pathlib.Path(path)).split("\n") for path in rest]
        else:
            text = [SPECIAL + HAND_MADE + list(random_lines(Stream(11), 600)), SPECIAL[::-1] + HAND_MADE + list(random_lines(Stream(12), 600))]
        for path, lines in zip(sides, text):
            path.write_bytes(("\n".join(lines_of(lines)) + "\n").encode())
        return
    prepared = scratch / "prepared"
    source, target = tokenizers_of(prepared)
    for tokenizer in (source, target):
        assert tokenizer.is_fast and tokenizer.eos_token_id == 0 and tokenizer.unk_token_id == 1, tokenizer
        assert tokenizer.pad_token_id == len(tokenizer) - 1, tokenizer
    pairs = list(zip(*(read(path).split("\n")[:-1] for path in sides)))
    pairs = [pair for pair in pairs if all(line.strip(SPACES) for line in pair)]
    expected = [ids for a, b in pairs for ids in (source(a)["input_ids"], target(b)["input_ids"])]
    found = [line for path in sorted(prepared.glob("train*.tokens")) for line in read_shard(path)]
    assert found == expected, next((pair for pair in zip(found, expected) if pair[0] != pair[1]), (len(found), len(expected)))
    exact = 0
    for (_, line), ids in zip(pairs, found[1::2]):
        line = unicodedata.normalize("NFC", line).strip(SPACES)
        if 1 not in ids and "\u2581" not in line:
            assert target.decode(ids, skip_special_tokens=True) == line, (line, ids)
            exact += 1
    references = "".join(read(path) for path in sorted(prepared.glob("valid*.txt")))
    assert references == "".join(line + "\n" for _, line in pairs)
    tokens = sum(map(len, found))
    print(f"{type(target).__name__} ({rest[0]}): {len(pairs)} pairs, {tokens} tokens, all equal; {exact} lines without unknown tokens decoded exactly")


if __name__ == "__main__":
    main(*sys.argv[1:])
