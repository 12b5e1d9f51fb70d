//! `hetseq prep verify`: read everything, and say what is there.

use std::process::ExitCode;

use anyhow::Context;
use hetseq_data::DataError;
use hetseq_data::error::CorpusError;
use hetseq_data::pretrain::{PretrainConfig, PretrainData};
use hetseq_data::source::corpus::CorpusSplit;
use hetseq_metrics::thousands;
use serde_json::json;

use crate::args::PrepVerifyArgs;
use crate::output::print_line;

pub(super) fn verify(args: &PrepVerifyArgs) -> anyhow::Result<ExitCode> {
    let config = PretrainConfig { vocabulary: args.vocab_size, ..PretrainConfig::default() };
    let mut object = json!({ "dir": args.dir.display().to_string() });
    for split in CorpusSplit::ALL {
        let data = match PretrainData::open(&args.dir, split, &config) {
            // There need not be held-out text.
            Err(DataError::Corpus(CorpusError::NoSuchSplit { .. })) if split == CorpusSplit::Valid => continue,
            opened => opened?,
        };
        // Shards in NVIDIA's layout were read whole when they were opened.
        if let PretrainData::Text(samples) = &data {
            samples.corpus().verify()?;
        }
        let kind = match data {
            PretrainData::Text(_) => "compact",
            PretrainData::Stored(_) => "hdf5",
        };
        object[split.name()] = json!({
            "kind": kind,
            "samples": data.len(),
            "vocabulary": data.vocabulary_size(),
            "fingerprint": data.fingerprint(),
        });
        if !args.json {
            let samples = thousands(data.len() as u64);
            print_line(&format!("{}: {kind}, whole: {samples} samples, {}", split.name(), data.fingerprint()));
        }
    }
    if args.json {
        print_line(&serde_json::to_string(&object).context("printing")?);
    }
    Ok(ExitCode::SUCCESS)
}
