"""Compares translation with transformers. Run by scripts/check-translation."""
import json, random, subprocess, sys, tempfile
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel

HETSEQ, DIR = Path(sys.argv[1]).resolve(), Path(tempfile.mkdtemp(prefix="hetseq-translation-"))
CONFIG = """
[run]
task = "translation"
devices = "cpu:2"
max_updates = {updates}
[task]
data = "data"
model = "tiny"
[batch]
global = "1500 tokens"
[optim]
name = "adam"
betas = [0.9, 0.98]
lr = 3e-3
schedule = {{ kind = "inverse-sqrt", warmup_updates = 60 }}
[valid]
every = "never"
"""


def hetseq(*args):
    return subprocess.run([HETSEQ, *map(str, args)], cwd=DIR, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout


def language(seed, count):
    """Yields sentences and translations: words reversed and capitalised, the first moved last."""
    draw = random.Random(seed)
    for _ in range(count):
        words = [f"{draw.choice('bdfgklm')}{draw.choice('aeiouäéß')}{draw.choice('nrst')}" for _ in range(draw.randint(1, 12))]
        yield " ".join(words) + draw.choice(".!?"), " ".join(word[::-1].title() for word in words[1:] + words[:1]) + " ."


def write(name, pairs):
    for side, lines in zip(("src", "tgt"), zip(*pairs)):
        (DIR / f"{name}.{side}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def compare(path, lines, what):
    model, info = AutoModelForSeq2SeqLM.from_pretrained(path, output_loading_info=True)
    assert isinstance(model, MarianMTModel), type(model)
    problems = {key: value for key, value in info.items() if value}
    assert not problems, problems
    tokenizer = AutoTokenizer.from_pretrained(path)
    (DIR / "lines.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    for beam in (1, 5):
        # The same length limit for every sentence, because transformers has one limit per batch.
        ours = hetseq("generate", path, "--input", "lines.txt", "--beam", beam, "--max-ratio", 0, "--max-more", 40).split("\n")[:-1]
        theirs = []
        for at in range(0, len(lines), 25):
            batch = tokenizer(lines[at:at + 25], return_tensors="pt", padding=True)
            ids = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=beam, max_length=41, do_sample=False)
            theirs += tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        same = sum(a == b for a, b in zip(ours, theirs))
        print(f"{what}, beam {beam}: {same} of {len(lines)} translations are identical", flush=True)
        assert same == len(lines) == len(ours), [pair for pair in zip(lines, ours, theirs) if pair[1] != pair[2]][:3]


train, valid, test = list(language(1, 4000)), list(language(2, 100)), [source for source, _ in language(3, 200)]
write("train", train), write("valid", valid)
hetseq("prep", "translate", "--source", "train.src", "--target", "train.tgt", "--valid-source", "valid.src", "--valid-target", "valid.tgt", "--out", "data", "--vocab-size", 300)
(DIR / "run.toml").write_text(CONFIG.format(updates=150))
hetseq("train", "run.toml", "--set", "run.dir=run")
hetseq("export", "run", "--out", "model")
compare(DIR / "model", test, "our checkpoint")

# A model saved by transformers, with our tokenizer added.
ours = json.loads((DIR / "model/config.json").read_text())
torch.manual_seed(1)
changes = {"d_model": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_layers": 1, "decoder_layers": 3, "activation_function": "swish", "init_std": 0.3}
keep = {key: ours[key] for key in ("vocab_size", "decoder_vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id")}
theirs = MarianMTModel(MarianConfig(**keep, **changes, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=128, scale_embedding=True, forced_eos_token_id=None, bos_token_id=None))
with torch.no_grad():
    theirs.final_logits_bias.normal_()
theirs.generation_config.bad_words_ids = [[keep["pad_token_id"]]]
theirs.generation_config.forced_eos_token_id = None
theirs.save_pretrained(DIR / "theirs")
for name in ("tokenizer.json", "tokenizer_config.json"):
    (DIR / "theirs" / name).write_bytes((DIR / "model" / name).read_bytes())
compare(DIR / "theirs", test, "a transformers model")
print("all identical")
