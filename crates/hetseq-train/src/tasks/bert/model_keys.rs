//! Which BERT a task trains: a published size, a config file, or the config of the initial weights.
//! Shared by pre-training and fine-tuning.

use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_models::bert::{BertConfig, BertSize};

use crate::task::TaskError;
use crate::tasks::initial_weights::missing_weights;

pub(crate) const MODEL_CONFIG: &str = "config.json";

/// The keys of the `[task]` table that define the model.
pub(crate) struct ModelKeys<'a> {
    pub(crate) size: Option<BertSize>,
    /// A `config.json`, or its directory.
    pub(crate) config: Option<&'a Path>,
    /// The initial weights. Their `config.json` counts unless another is given.
    pub(crate) init: Option<&'a Path>,
    /// Replaces both dropout rates.
    pub(crate) dropout: Option<f64>,
}

impl ModelKeys<'_> {
    /// The model's config and the file it was read from. `vocabulary` is the tokenizer's number of
    /// tokens, used for a published size.
    pub(crate) fn model(&self, vocabulary: Option<usize>) -> Result<(BertConfig, Option<PathBuf>), TaskError> {
        if self.size.is_some() && self.config.is_some() {
            return Err("task.model and task.config both define the model; remove one of them".into());
        }
        let next_to_weights = || self.init.map(|dir| dir.join(MODEL_CONFIG)).filter(|file| file.exists());
        let (mut config, file) = match (self.size, self.config.map(Path::to_owned).or_else(next_to_weights)) {
            (Some(size), _) => {
                let config = size.config();
                (BertConfig { vocab_size: vocabulary.unwrap_or(config.vocab_size), ..config }, None)
            }
            (None, Some(file)) => (read(&file)?, Some(file)),
            (None, None) => {
                if let Some(init) = self.init.filter(|init| !init.exists()) {
                    return Err(TaskError::Other(missing_weights(init)));
                }
                let why = self.init.map_or_else(String::new, |init| {
                    format!("there is no {MODEL_CONFIG} in task.init = {}; ", init.display())
                });
                return Err(TaskError::Other(format!(
                    "{why}define the model: task.model = \"tiny\", \"mini\", \"small\", \"medium\", \"base\" or \"large\", \
                     or task.config = a config.json, or task.init = a Hugging Face directory"
                )));
            }
        };
        if let Some(rate) = self.dropout {
            (config.hidden_dropout_prob, config.attention_probs_dropout_prob) = (rate, rate);
            if !(0.0..1.0).contains(&rate) {
                return Err(TaskError::Other(format!("task.dropout = {rate} must be at least 0 and below 1")));
            }
        }
        Ok((config, file))
    }
}

fn read(file: &Path) -> Result<BertConfig, TaskError> {
    // A directory means the file in it.
    let file = if file.is_dir() { file.join(MODEL_CONFIG) } else { file.to_owned() };
    let text = fs::read_to_string(&file).map_err(|error| TaskError::Other(error.to_string()))?;
    BertConfig::from_json(&text).map_err(|error| TaskError::Other(format!("{}: {error}", file.display())))
}
