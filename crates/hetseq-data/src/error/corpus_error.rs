//! Errors of text corpora: finding the text, preparing it, and reading what was prepared.
//!
//! Part of [`DataError`](super::DataError), in a separate enum only because text has many ways to
//! fail.

use std::path::PathBuf;

use crate::source::data_kind::DataKind;

#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    #[error("there is no file or directory {}; check the path of the text", .path.display())]
    NoInput { path: PathBuf },

    #[error(
        "found no text in {}; pass text files, or directories with .txt, .jsonl, .parquet or extensionless files, also \
         with .gz or .zst",
        .inputs.iter().map(|input| input.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoText { inputs: Vec<PathBuf> },

    /// A file of another kind than text.
    #[error("{} is {what}, which `hetseq prep` does not read; {remedy}", .path.display())]
    NoTextFile { path: PathBuf, what: &'static str, remedy: String },

    #[error(
        "{0}, line {line} is not UTF-8; convert the file with `iconv -f ENCODING -t UTF-8`, where ENCODING is the one \
         that it has, such as WINDOWS-1252; or drop the invalid bytes: {read} {0} | iconv -c -f UTF-8 -t UTF-8 > text.txt",
        .path.display()
    )]
    NotUtf8 { path: PathBuf, line: u64, read: &'static str },

    #[error("{}, line {line}: {problem}", .path.display())]
    BadObject { path: PathBuf, line: usize, problem: String },

    #[error(
        "{}, line {line}: there is no field `{field}`, only {}; name the one with the text: --field NAME",
        .path.display(),
        .known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    )]
    NoField { path: PathBuf, line: usize, field: String, known: Vec<String> },

    #[error(
        "{source_files} source files but {target_files} target files; pass the same number of both, in the same order"
    )]
    UnequalFiles { source_files: usize, target_files: usize },

    #[error(
        "{} has {source_lines} lines but {} has {target_lines}; line n of one must be the translation of line n of the \
         other: find the first line that does not match, or download both files again",
        .source_path.display(),
        .target_path.display()
    )]
    UnequalLines { source_path: PathBuf, source_lines: u64, target_path: PathBuf, target_lines: u64 },

    #[error("{} has no lines; use a file with text, or leave it out on both sides", .path.display())]
    EmptyFile { path: PathBuf },

    #[error(
        "none of the {read} pairs in {} was kept: {dropped}; check that the files belong together, or relax \
         --min-length, --max-length or --max-ratio",
        .files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoPairLeft { files: Vec<PathBuf>, read: u64, dropped: String },

    /// Only for text in which no line may be lost or changed.
    #[error("{}, line {line}: {problem}; fix the line, or convert the file to UTF-8 (`iconv`)", .path.display())]
    BadLine { path: PathBuf, line: usize, problem: &'static str },

    #[error("{name}: {problem}")]
    BadSetting { name: &'static str, problem: String },

    #[error("{} is not a valid tokenizer: {problem}", .path.display())]
    BadTokenizer { path: PathBuf, problem: String },

    #[error(
        "{} was prepared with other settings: {}; prepare into another directory, or delete this one first",
        .dir.display(),
        .differences.join("; ")
    )]
    OtherSettings { dir: PathBuf, differences: Vec<String> },

    #[error(
        "{} contains files that `hetseq prep` did not write ({file}); use an empty or a new directory",
        .dir.display()
    )]
    NotEmpty { dir: PathBuf, file: String },

    #[error(
        "{} is not a complete corpus: {file} is missing; run the same `hetseq prep` command again, it resumes where it \
         stopped",
        .dir.display()
    )]
    Unfinished { dir: PathBuf, file: &'static str },

    #[error(
        "there is no directory {}; set the data path to one that `hetseq prep` wrote, or, for BERT, one with HDF5 \
         shards in NVIDIA's layout",
        .dir.display()
    )]
    NoDirectory { dir: PathBuf },

    #[error(
        "{} holds {}, not {}; set run.task = \"{}\", or set task.data to data of `{}`",
        .dir.display(), .found.description(), .expected.description(), .found.task(), .expected.made_by()
    )]
    OtherTask { dir: PathBuf, found: DataKind, expected: DataKind },

    #[error("{} has no {split} split; {remedy}", .dir.display())]
    NoSuchSplit { dir: PathBuf, split: &'static str, remedy: &'static str },

    /// A file in one of our formats whose content is invalid.
    #[error("{}: {field}: {problem}; prepare or copy it again", .path.display())]
    Damaged { path: PathBuf, field: &'static str, problem: String },

    #[error(
        "{}: its content does not match the checksum in its header: {remedy}; `hetseq prep verify` checks all files of a \
         directory",
        .path.display()
    )]
    WrongChecksum { path: PathBuf, remedy: &'static str },

    /// A file in NVIDIA's layout whose content is invalid.
    #[error("{}: field `{field}`: {problem}; create or copy the shard again", .path.display())]
    BadField { path: PathBuf, field: String, problem: String },

    /// A file that a newer version of the HDF5 library wrote.
    #[error(
        "{0} has a newer HDF5 format than this program reads ({problem}), as h5py writes it with libver='latest'; write it \
         again with the default: python3 -c \"import h5py, sys; old, new = h5py.File(sys.argv[1]), \
         h5py.File(sys.argv[2], 'w'); [new.create_dataset(k, data=old[k][...], compression='gzip') for k in old]\" \
         {0} NEW.hdf5",
        .path.display()
    )]
    NewerHdf5 { path: PathBuf, problem: String },

    #[error(
        "{} contains the token {id}, but the vocabulary has only {vocabulary} tokens; use the vocabulary that it was \
         made with",
        .path.display()
    )]
    IdBeyondVocabulary { path: PathBuf, id: u32, vocabulary: usize },

    #[error("{} has {samples} samples, but the limit is {}; use a part of it", .dir.display(), u32::MAX)]
    TooManySamples { dir: PathBuf, samples: u64 },

    #[error(
        "{} has {shards} shards, but the limit is {}; prepare it with a larger --shard-mb",
        .dir.display(),
        u16::MAX
    )]
    TooManyShards { dir: PathBuf, shards: usize },

    #[error("there is no sample {sample}; there are {samples}")]
    NoSuchSample { sample: u32, samples: usize },
}
