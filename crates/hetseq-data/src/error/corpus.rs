//! What can go wrong with text: finding it, preparing it, and reading what was prepared.
//!
//! A part of [`DataError`](super::DataError), apart from it only because text has so many ways to be wrong.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    #[error("there is no file or directory {}; check the path of the text", .path.display())]
    NoInput { path: PathBuf },

    #[error(
        "found no text in {}; give text files, or directories that hold .txt, .gz or files without an ending",
        .inputs.iter().map(|input| input.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoText { inputs: Vec<PathBuf> },

    #[error("{} is not text (it has zero bytes); leave it out, or unpack it first", .path.display())]
    NotText { path: PathBuf },

    #[error("{source_files} source files but {target_files} target files; give as many of both, in the same order")]
    UnequalFiles { source_files: usize, target_files: usize },

    #[error(
        "{} has {source_lines} lines but {} has {target_lines}; line n of one must be the translation of line n of the \
         other: find where they part, or get them again",
        .source_path.display(),
        .target_path.display()
    )]
    UnequalLines { source_path: PathBuf, source_lines: u64, target_path: PathBuf, target_lines: u64 },

    #[error("{} has no lines; give a file with text, or leave it out on both sides", .path.display())]
    EmptyFile { path: PathBuf },

    #[error(
        "no pair is left of {read} in {}: {dropped}; check that the files belong together, or relax --min-length, --max-length or \
         --max-ratio",
        .files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoPairLeft { files: Vec<PathBuf>, read: u64, dropped: String },

    /// In text of which no line may be lost or changed.
    #[error("{}, line {line}: {problem}; mend the line, or convert the file to UTF-8 (`iconv`)", .path.display())]
    BadLine { path: PathBuf, line: usize, problem: &'static str },

    #[error("{name}: {problem}")]
    BadSetting { name: &'static str, problem: String },

    #[error("{} does not give a tokenizer: {problem}", .path.display())]
    BadTokenizer { path: PathBuf, problem: String },

    #[error(
        "{} was prepared with other settings: {}; prepare into another directory, or delete this one first",
        .dir.display(),
        .differences.join("; ")
    )]
    OtherSettings { dir: PathBuf, differences: Vec<String> },

    #[error(
        "{} holds files that no preparation of text has left there ({file}); give an empty or a new directory",
        .dir.display()
    )]
    NotEmpty { dir: PathBuf, file: String },

    #[error(
        "{} is not a finished preparation of text: there is no {file}; run the same `hetseq prep` again, it goes on \
         where it stopped",
        .dir.display()
    )]
    Unfinished { dir: PathBuf, file: &'static str },

    #[error(
        "there is no directory {}; set the data path to one that `hetseq prep` wrote, or, for BERT, that holds HDF5 \
         shards in NVIDIA's layout",
        .dir.display()
    )]
    NoDirectory { dir: PathBuf },

    #[error("{} has no {split} split; {remedy}", .dir.display())]
    NoSuchSplit { dir: PathBuf, split: &'static str, remedy: &'static str },

    /// A file of ours that is not as it was written.
    #[error("{}: {field}: {problem}; prepare or copy it again", .path.display())]
    Damaged { path: PathBuf, field: &'static str, problem: String },

    #[error(
        "{}: its content does not match the checksum in its header: {remedy}; `hetseq prep verify` checks all files of a \
         directory",
        .path.display()
    )]
    WrongChecksum { path: PathBuf, remedy: &'static str },

    /// A file in NVIDIA's layout that is not as it should be.
    #[error("{}: field `{field}`: {problem}; make or copy the shard again", .path.display())]
    BadField { path: PathBuf, field: String, problem: String },

    #[error(
        "{} holds the token {id}, but the vocabulary has only {vocabulary} tokens; use the vocabulary that it was \
         made with",
        .path.display()
    )]
    IdBeyondVocabulary { path: PathBuf, id: u32, vocabulary: usize },

    #[error("{} holds {samples} samples, and at most {} can be told apart; use a part of it", .dir.display(), u32::MAX)]
    TooManySamples { dir: PathBuf, samples: u64 },

    #[error("{} has {shards} shards, and at most {} can be told apart; prepare it with a larger --shard-mb", .dir.display(), u16::MAX)]
    TooManyShards { dir: PathBuf, shards: usize },

    #[error("there is no sample {sample}; there are {samples}")]
    NoSuchSample { sample: u32, samples: usize },
}
