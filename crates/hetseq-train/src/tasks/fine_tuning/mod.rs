//! Fine-tuning of BERT: a label for each word (`token-classification`) or for each text
//! (`sequence-classification`). Here is what both share: the pre-trained model to start from, and
//! the files that make a checkpoint a Hugging Face directory.

mod sequence_classification;
mod token_classification;

use std::path::{Path, PathBuf};

use hetseq_data::tokenize::Tokenizer;
use hetseq_models::bert::{BertConfig, parameter_name};

use super::bert::{MODEL_CONFIG, ModelKeys, model_files};
use crate::task::{HuggingFace, TaskError};

pub use sequence_classification::{SequenceClassification, SequenceClassificationConfig};
pub use token_classification::{TokenClassification, TokenClassificationConfig};

/// The model and tokenizer that a task starts from.
struct Pretrained {
    model: BertConfig,
    tokenizer: Tokenizer,
}

impl Pretrained {
    /// `tokenizer` is the configured one; by default that of the initial weights.
    fn open(keys: &ModelKeys<'_>, tokenizer: Option<&Path>, max_seq_length: usize) -> Result<Self, TaskError> {
        let Some(path) = tokenizer.or(keys.init) else {
            return Err("set task.init to a Hugging Face directory, or task.tokenizer to a tokenizer.json or a \
                        vocab.txt: words must be split as the model expects"
                .into());
        };
        let tokenizer = Tokenizer::read(path)?;
        let words = tokenizer.vocabulary().size();
        let (model, _) = keys.model(Some(words))?;
        if words > model.vocab_size {
            let size = model.vocab_size;
            return Err(format!("the tokenizer has {words} tokens, but the model's vocab_size = {size}").into());
        }
        let positions = model.max_position_embeddings;
        if max_seq_length > positions {
            return Err(
                format!("task.max_seq_length = {max_seq_length}, but the model has {positions} positions").into()
            );
        }
        Ok(Pretrained { model, tokenizer })
    }
}

/// The exchange with Hugging Face of a classifier.
struct ClassifierFiles {
    files: Vec<(String, Vec<u8>)>,
    init: Option<PathBuf>,
    has_pooler: bool,
    /// Start with a new classifier, also if the initial weights have one.
    new_head: bool,
}

impl ClassifierFiles {
    fn new(
        start: &Pretrained,
        architecture: &str,
        labels: &[String],
        init: Option<&Path>,
        new_head: bool,
    ) -> Result<Self, TaskError> {
        let config = start.model.to_json(architecture, labels).map_err(|error| format!("{MODEL_CONFIG}: {error}"))?;
        let files = model_files(config, Some(&start.tokenizer))?;
        let has_pooler = architecture != TOKEN_CLASSIFIER;
        Ok(ClassifierFiles { files, init: init.map(Path::to_owned), has_pooler, new_head })
    }
}

/// The transformers class of each task. The first has no pooler.
const TOKEN_CLASSIFIER: &str = "BertForTokenClassification";
const SEQUENCE_CLASSIFIER: &str = "BertForSequenceClassification";

impl HuggingFace for ClassifierFiles {
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        self.files.clone()
    }

    fn init_from(&self) -> Option<&Path> {
        self.init.as_deref()
    }

    /// Heads of pre-training are not used.
    fn parameter_name(&self, theirs: &str) -> Option<String> {
        let name = parameter_name(theirs)?;
        let is_unused = name.starts_with("cls.")
            || (!self.has_pooler && name.starts_with("bert.pooler."))
            || (self.new_head && name.starts_with("classifier."));
        (!is_unused).then_some(name)
    }

    fn allow_missing(&self, name: &str) -> bool {
        name.starts_with("classifier.") || name.starts_with("bert.pooler.")
    }
}
