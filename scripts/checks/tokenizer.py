"""Writes lines and checks their tokens against AutoTokenizer. Run by scripts/check-tokenizer."""

import pathlib
import struct
import sys

import numpy as np
from transformers import AutoTokenizer

sys.path.append(str(pathlib.Path(__file__).parent.parent / "fixtures"))
from stream import Stream  # noqa: E402
from tokens import HAND_MADE, random_lines  # noqa: E402


def lines_of(text):
    # Only a newline ends a line, and hetseq treats a file with a zero byte as binary. hetseq skips
    # headings on purpose, so they are left out here.
    lines = [" ".join(line.replace("\0", "").replace("\r", "\n").split("\n")) for line in text]
    return [line for line in lines if not line.strip().startswith("=") and "<unk>" not in line and "@" not in line]


def read_shard(path):
    """Returns the sentences of a token shard. Layout: crates/hetseq-data/src/source/tokens.rs."""
    data = path.read_bytes()
    magic, version, width, _, _, tokens, sentences, _ = struct.unpack_from("<8sIIIIQQQ", data)
    assert (magic, version) == (b"HETSEQTK", 1)
    ids = np.frombuffer(data, "<u2" if width == 2 else "<u4", tokens, 128)
    ends = np.frombuffer(data, "<u4", sentences, 128 + -(-tokens * width // 8) * 8)
    return [part.tolist() for part in np.split(ids, ends[:-1])]


def sentences_of(text, tokenizer):
    """Returns the tokens of a text with one sentence per line.

    Omits documents of a single token, as `hetseq prep` does."""
    encoded = [tokenizer.encode(line.strip(), add_special_tokens=False, split_special_tokens=True) for line in text]
    sentences, document = [], []
    for line, ids in zip(text + [""], encoded + [[]]):
        if line.strip():
            document += [ids] if ids else []
        else:
            sentences += document if sum(map(len, document)) > 1 else []
            document = []
    return sentences


def main(what, scratch, *rest):
    scratch = pathlib.Path(scratch)
    if what == "write":
        text = pathlib.Path(rest[0]).read_text(errors="replace").split("\n") if rest else HAND_MADE + list(random_lines(Stream(11), 600))
        (scratch / "text.txt").write_text("\n".join(lines_of(text)) + "\n")
        return
    prepared = scratch / rest[0]
    tokenizer = AutoTokenizer.from_pretrained(prepared)
    assert tokenizer.is_fast and tokenizer.mask_token_id == 4 and tokenizer.cls_token_id == 2, tokenizer
    text = (scratch / "text.txt").read_text().split("\n")
    # In this text, a document of a single token is always a line between blank lines.
    expected = sentences_of(text, tokenizer)
    found = [sentence for path in sorted(prepared.glob("*.tokens")) for sentence in read_shard(path)]
    assert found == expected, next((pair for pair in zip(found, expected) if pair[0] != pair[1]), (len(found), len(expected)))
    print(f"{type(tokenizer).__name__} ({'cased' if 'cased' in rest[0] else 'uncased'}): {len(found)} sentences, {sum(map(len, found))} tokens, all equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
