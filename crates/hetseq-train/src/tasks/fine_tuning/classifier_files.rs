//! The exchange of a fine-tuned model with Hugging Face: initial weights of any BERT, and
//! checkpoints that `transformers` loads.

use std::path::{Path, PathBuf};

use hetseq_models::bert::{ClassifierArchitecture, parameter_name};

use super::shared_keys::{Pretrained, SharedKeys};
use crate::task::{HuggingFace, TaskError};
use crate::tasks::bert::{MODEL_CONFIG, model_files};

/// Modules of fine-tuned models that pre-trained ones lack.
const HEADS: [&str; 2] = ["classifier.", "entity_classifier."];

pub(super) struct ClassifierFiles {
    files: Vec<(String, Vec<u8>)>,
    init: Option<PathBuf>,
    architecture: ClassifierArchitecture,
    /// Start with new heads, also if the initial weights have some.
    new_head: bool,
}

impl ClassifierFiles {
    pub(super) fn new(
        start: &Pretrained,
        architecture: ClassifierArchitecture,
        labels: &[String],
        keys: &SharedKeys<'_>,
    ) -> Result<Self, TaskError> {
        let config = start.model.to_json(architecture.name(), labels);
        let config = config.map_err(|error| format!("{MODEL_CONFIG}: {error}"))?;
        let files = model_files(config, Some(&start.tokenizer), start.model.max_position_embeddings)?;
        Ok(ClassifierFiles { files, init: keys.init.map(Path::to_owned), architecture, new_head: keys.new_head })
    }

    /// For a trained model, which must be complete.
    pub(super) fn of_checkpoint(architecture: ClassifierArchitecture) -> Self {
        ClassifierFiles { files: Vec::new(), init: None, architecture, new_head: false }
    }
}

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
            || (!self.architecture.has_pooler() && name.starts_with("bert.pooler."))
            || (self.new_head && is_head(&name));
        (!is_unused).then_some(name)
    }

    fn allow_missing(&self, name: &str) -> bool {
        self.init.is_some() && (is_head(name) || name.starts_with("bert.pooler."))
    }
}

fn is_head(name: &str) -> bool {
    HEADS.iter().any(|head| name.starts_with(head))
}
