//! Defaults and meanings of the keys in `[task]`, for each built-in task.

use super::KeyRow;

/// Each task with its own keys and those that it shares with others.
pub(super) const TASKS: [(&str, &[&[KeyRow]]); 8] = [
    ("images", &[&IMAGES]),
    ("bert-pretrain", &[&BERT_PRETRAIN]),
    ("token-classification", &[&TOKEN_CLASSIFICATION, &FINE_TUNING]),
    ("sequence-classification", &[&SEQUENCE_CLASSIFICATION, &FINE_TUNING]),
    ("entity-linking", &[&ENTITY_LINKING, &FINE_TUNING]),
    ("translation", &[&TRANSLATION]),
    ("synthetic-bert", &[&SYNTHETIC_BERT]),
    ("python", &[&PYTHON]),
];

const IMAGES: [KeyRow; 12] = [
    ("data", "required", "directory with class folders or MNIST's idx files"),
    (
        "model",
        "`\"convnet\"`",
        "or `\"resnet18\"`, `\"resnet34\"`, `\"resnet50\"`: with group norm, weights named as in torchvision",
    ),
    ("width", "`64`", "channels of a ResNet's first stage"),
    ("stem", "by size", "`\"small\"` (3 x 3, keeps the size) up to 64 pixels, `\"large\"` (7 x 7 and pooling) above"),
    ("dropout", "`0.0`", "before the last layer; in the small network before both linear layers"),
    ("mean", "see below", "normalisation of pixels scaled to 0..1: a number, or one each for red, green, blue"),
    ("std", "see below", "the same for the standard deviation"),
    ("image_size", "224", "class folders: width and height of the network's input in pixels"),
    (
        "crop",
        "`{ scale = [0.08, 1.0], ratio = [0.75, 1.333], flip = 0.5 }`",
        "class folders, training: fraction of the area, aspect ratio, probability of a flip",
    ),
    (
        "resize",
        "8/7 of `image_size`; `image_size` up to 64",
        "class folders, validation: length of the shorter side before the centre crop",
    ),
    ("on_error", "`\"fatal\"`", "class folders: an unreadable file ends the run; `\"skip\"` continues without it"),
    (
        "augment",
        "`{ shift_pixels = 0.0, rotate_degrees = 0.0 }`",
        "idx files, training: largest random shift and rotation",
    ),
];

const BERT_PRETRAIN: [KeyRow; 17] = [
    ("data", "required", "output of `hetseq prep bert`, or a directory of shards in NVIDIA's layout"),
    (
        "model",
        "see `config`, `init`",
        "`tiny`, `mini`, `small`, `medium`, `base`, `large`; the vocabulary is that of the data",
    ),
    ("config", "none", "instead: a `config.json` of Hugging Face, or a `bert_config.json` of Google"),
    (
        "init",
        "none",
        "initial weights: a Hugging Face directory (also one of our checkpoints), a `.safetensors` or a PyTorch file. The model is that of the directory's `config.json`, unless `model` or `config` is set. Rank 0 reads it when a run begins (the config at every start)",
    ),
    (
        "tokenizer",
        "that of the data",
        "tokenizer files to copy into checkpoints: a directory, a `tokenizer.json` or a `vocab.txt`. Shards from other programs have none",
    ),
    ("dropout", "the model's", "both rates"),
    (
        "recompute",
        "`false`",
        "activation checkpointing: keep only the inputs of layers, recompute each layer in the backward pass",
    ),
    ("next_sentence", "`true`", "also predict whether the second sentence follows the first"),
    ("max_seq_length", "`128`", "text only; shards have a fixed length"),
    ("mask_probability", "`0.15`", "text only, as are the next four"),
    ("max_predictions_per_seq", "no limit", "most masked tokens of a sample"),
    (
        "whole_word",
        "`false`",
        "mask all pieces of a word or none; at least one word, unless each has more than `max_predictions_per_seq`",
    ),
    ("short_seq_prob", "`0.1`", "fraction of the samples that are cut short on purpose"),
    ("cut_seed", "`1`", "seed of the positions at which text is cut into samples"),
    ("pad_to_multiple", "`8`", "micro-batches are padded to a multiple of this"),
    ("memory_mib", "`1024`", "shards only: memory for training and validation together, in each process"),
    (
        "unpack_dir",
        "`.unpacked` beside the shards",
        "shards only: directory for those that do not fit into `memory_mib`",
    ),
];

const TOKEN_CLASSIFICATION: [KeyRow; 7] = [
    (
        "train",
        "required",
        "CoNLL file: a word and its label per line, a blank line between sentences; gzipped files work, too",
    ),
    ("token_column", "`0`", "column of the words; negative numbers count from the last"),
    ("label_column", "`-1`", "column of the labels"),
    (
        "scheme",
        "`\"conlleval\"`",
        "how entities are found in tags: as seqeval does by default, or strictly by `iob1`, `iob2`, `ioe1`, `ioe2`, `iobes`, `bilou`",
    ),
    ("label_all", "`false`", "label all pieces of a word, not only the first"),
    (
        "long_sentences",
        "`\"windows\"`",
        "sentences longer than `max_seq_length` are split into windows; `\"truncate\"` cuts them",
    ),
    ("overlap_words", "`16`", "words that a window shares with the next"),
];

const SEQUENCE_CLASSIFICATION: [KeyRow; 7] = [
    (
        "train",
        "required",
        "table with one sample per line: TSV, CSV or JSONL, as its name ends (Parquet in a build with `--features parquet`); longer texts are truncated",
    ),
    ("text", "`\"text\"`", "column of the text, by name or number from 0"),
    ("second_text", "none", "column of the second text of a pair"),
    ("label", "`\"label\"`", "column of the label"),
    ("format", "by name", "`tsv`, `csv`, `jsonl`, if the names of the files do not tell"),
    ("header", "if a column is a name", "whether TSV and CSV have a header"),
    ("regression", "`false`", "learn a number instead of a class"),
];

const ENTITY_LINKING: [KeyRow; 9] = [
    ("train", "required", "CoNLL file: a word, its tag and its entity per line, a blank line between sentences"),
    (
        "entities",
        "required",
        "embeddings: a text file of word2vec (`name 0.1 0.2 ...`), or a `.safetensors` file with one matrix",
    ),
    ("entity_names", "none", "with `.safetensors`: the names of its rows, one per line"),
    ("token_column", "`0`", "column of the words; negative numbers count from the last"),
    ("label_column", "`-2`", "column of the tags"),
    ("entity_column", "`-1`", "column of the entities"),
    (
        "entity_weight",
        "`1.0`",
        "weight of the loss of entities; that of mentions is 1. Each is divided by its own count",
    ),
    (
        "long_sentences",
        "`\"windows\"`",
        "sentences longer than `max_seq_length` are split into windows; `\"truncate\"` cuts them",
    ),
    ("overlap_words", "`16`", "words that a window shares with the next"),
];

/// Keys of all three fine-tuning tasks.
const FINE_TUNING: [KeyRow; 11] = [
    ("valid", "none", "as `train`, for validation"),
    ("labels", "found", "all labels, in the order of the outputs; by default those of the training data"),
    (
        "init",
        "none",
        "initial weights: a Hugging Face directory or a checkpoint; also gives the tokenizer and the model, unless set below",
    ),
    ("new_head", "`false`", "start with a new classifier, also if `init` has one"),
    ("model", "that of `init`", "a published size: `tiny`, `mini`, `small`, `medium`, `base`, `large`"),
    ("config", "that of `init`", "instead of `model`: a `config.json`"),
    ("tokenizer", "that of `init`", "a directory, a `tokenizer.json` or a `vocab.txt`"),
    ("dropout", "the model's", "both rates"),
    ("max_seq_length", "`128`", "most tokens of a sample, special ones included"),
    ("pad_to_multiple", "`8`", "micro-batches are padded to a multiple of this"),
    ("recompute", "`false`", "recompute layers in the backward pass: less memory, about a third more time"),
];

const TRANSLATION: [KeyRow; 19] = [
    ("data", "required", "output of `hetseq prep translate`"),
    ("model", "see `config`, `init`", "`tiny`, `small`, `iwslt`, `base`, `big`; the keys below change parts of it"),
    ("config", "none", "instead: the `config.json` of a Marian model"),
    (
        "init",
        "none",
        "initial weights: a Hugging Face directory, a `.safetensors` or a PyTorch file. The directory's `config.json` defines the model, unless `model` or `config` is set",
    ),
    ("layers", "the model's", "layers of the encoder, and of the decoder"),
    ("width", "the model's", "width of the embeddings and layers"),
    ("heads", "the model's", "attention heads"),
    ("feed_forward", "the model's", "width of the feed-forward blocks"),
    ("activation", "the model's", "`gelu`, `gelu_new`, `relu`, `silu`"),
    ("norm", "`post`", "layer norm after each block, as published, or before: `pre`"),
    ("positions", "`sines`", "position embeddings: sinusoidal, or learned: `learnt`"),
    ("max_positions", "the model's", "most tokens of either side"),
    ("dropout", "the model's", "dropout of embeddings and blocks"),
    ("attention_dropout", "the model's", "dropout of attention weights"),
    ("activation_dropout", "the model's", "dropout inside the feed-forward blocks"),
    ("label_smoothing", "`0.1`", "fraction of each label that is spread over all words"),
    ("bleu", "`true`", "translate the validation text at each validation and compute BLEU"),
    ("bleu_beam", "`1`", "beam width of that search; 1 is greedy"),
    ("pad_to_multiple", "`1`", "both sides of a micro-batch are padded to a multiple of this"),
];

const SYNTHETIC_BERT: [KeyRow; 3] = [
    ("geometry", "required", "`tiny`, `small`, `base2` or `base`"),
    ("samples", "`65536`", "samples per epoch"),
    ("dropout", "`0.0`", "of hidden states and attention"),
];

const PYTHON: [KeyRow; 2] = [
    ("file", "required", "Python file with the class"),
    ("class", "`Task`", "name of the class; it gets all other keys"),
];
