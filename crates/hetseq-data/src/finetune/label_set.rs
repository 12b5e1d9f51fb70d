//! The labels of a task and their ids. Made from the training data or the config, saved with the
//! model, and used for all other data: an id never changes its meaning.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{DataError, FinetuneError};
use crate::source::conll::ConllFile;

/// The label of words outside entities.
pub(super) const OUTSIDE: &str = "O";

/// Labels and their ids, which are 0, 1, 2, ...
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelSet {
    names: Vec<String>,
    ids: HashMap<String, u32>,
}

impl LabelSet {
    /// The labels found in data, in any order and number: sorted, `O` first.
    pub fn found<S: AsRef<str>>(labels: impl IntoIterator<Item = S>) -> Self {
        let mut different: BTreeSet<String> = labels.into_iter().map(|label| label.as_ref().to_owned()).collect();
        let names: Vec<String> = different.take(OUTSIDE).into_iter().chain(different).collect();
        Self::numbered(names)
    }

    /// Given labels, in the order of their ids.
    pub fn given(names: Vec<String>) -> Result<Self, DataError> {
        let bad = |problem| Err(FinetuneError::BadLabelSet { problem }.into());
        if names.is_empty() {
            return bad("it has no labels; list at least one".to_owned());
        }
        if names.iter().any(|name| name.trim() != name || name.is_empty()) {
            return bad("a label is empty, or begins or ends with a space; correct it".to_owned());
        }
        let labels = names.len();
        let set = Self::numbered(names);
        if set.ids.len() < labels {
            let repeated = set.names.iter().enumerate().find(|(at, name)| set.ids.get(*name) != Some(&(*at as u32)));
            let name = repeated.map_or("", |(_, name)| name.as_str());
            return bad(format!("it has the label `{name}` twice; remove one"));
        }
        Ok(set)
    }

    /// The labels in the `config.json` of a Hugging Face model, under `id2label`.
    pub fn from_config(config: &Value) -> Result<Self, DataError> {
        let bad = |problem: &str| FinetuneError::BadLabelSet { problem: problem.to_owned() };
        let ids = config["id2label"].as_object().ok_or_else(|| bad("there is no `id2label` in config.json"))?;
        let name = |id: usize| ids.get(&id.to_string()).and_then(Value::as_str).map(str::to_owned);
        let names: Option<Vec<String>> = (0..ids.len()).map(name).collect();
        Self::given(names.ok_or_else(|| bad("the ids in `id2label` of config.json are not 0, 1, 2, ..."))?)
    }

    fn numbered(names: Vec<String>) -> Self {
        let ids = (0..).zip(&names).map(|(id, name)| (name.clone(), id)).collect();
        LabelSet { names, ids }
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The labels, in the order of their ids.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn id(&self, label: &str) -> Option<u32> {
        self.ids.get(label).copied()
    }

    pub fn name(&self, id: u32) -> Option<&str> {
        self.names.get(id as usize).map(String::as_str)
    }

    /// `id2label` of a Hugging Face `config.json`.
    pub fn id2label(&self) -> Value {
        let entry = |(id, name): (usize, &String)| (id.to_string(), Value::from(name.as_str()));
        Value::Object(self.names.iter().enumerate().map(entry).collect::<Map<_, _>>())
    }

    /// `label2id` of a Hugging Face `config.json`.
    pub fn label2id(&self) -> Value {
        Value::Object(self.names.iter().enumerate().map(|(id, name)| (name.clone(), id.into())).collect::<Map<_, _>>())
    }

    /// 16 hexadecimal digits that differ between label sets.
    pub fn fingerprint(&self) -> String {
        crate::fingerprint::fingerprint(Value::from(self.names.clone()).to_string().as_bytes())
    }

    /// The label ids of all words of a file. A label that is not in the set is an error, which
    /// names the first line with it.
    pub(super) fn word_labels(&self, file: &ConllFile) -> Result<Vec<u32>, DataError> {
        if !file.has_labels() {
            return Err(FinetuneError::Unlabelled { path: file.path().to_owned() }.into());
        }
        let ids: Vec<Option<u32>> = file.label_names().iter().map(|label| self.id(label)).collect();
        let id = |(word, &label): (usize, &u32)| match ids.get(label as usize) {
            Some(Some(id)) => Ok(*id),
            _ => Err(self.unknown(file.path(), file.line(word), file.label(word).unwrap_or_default())),
        };
        file.label_indices().iter().enumerate().map(id).collect()
    }

    pub(super) fn unknown(&self, path: &Path, line: usize, label: &str) -> DataError {
        let (path, label, known) = (path.to_owned(), label.to_owned(), self.names.clone());
        FinetuneError::UnknownLabel { path, line, label, known }.into()
    }

    /// For each label, the label of the other sub-tokens of its word: `I-x` for `B-x`, if there is
    /// such a label, else the label itself.
    pub(super) fn continued(&self) -> Vec<u32> {
        let inside = |name: &String| match name.strip_prefix('B') {
            Some(rest) if rest.is_empty() || rest.starts_with('-') => self.id(&format!("I{rest}")),
            _ => None,
        };
        (0..).zip(&self.names).map(|(id, name)| inside(name).unwrap_or(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_labels_are_sorted_and_o_is_first() {
        let set = LabelSet::found(["B-x", "I-x", "O", "A", "B-x"]);
        assert_eq!(set.names(), ["O", "A", "B-x", "I-x"]);
        assert_eq!((set.id("B-x"), set.id("x"), set.name(3), set.name(4)), (Some(2), None, Some("I-x"), None));
        assert_eq!(set.continued(), [0, 1, 3, 3]);
        assert_eq!(set.id2label().to_string(), r#"{"0":"O","1":"A","2":"B-x","3":"I-x"}"#);
        assert_eq!(set.label2id().to_string(), r#"{"A":1,"B-x":2,"I-x":3,"O":0}"#);
        assert!(LabelSet::found::<&str>([]).is_empty());
    }

    #[test]
    fn a_label_set_survives_its_config() {
        let names: Vec<String> = (0..12).map(|at| format!("label {}", 20 - at)).collect();
        let set = LabelSet::given(names).unwrap();
        let config = serde_json::json!({ "id2label": set.id2label() });
        assert_eq!(LabelSet::from_config(&config).unwrap(), set);
        assert_ne!(set.fingerprint(), LabelSet::found(set.names()).fingerprint());
    }

    #[test]
    fn invalid_label_sets_are_refused() {
        let given = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            LabelSet::given(names).unwrap_err().to_string()
        };
        assert_eq!(given(&[]), "the label set is not valid: it has no labels; list at least one");
        assert_eq!(given(&["a", "b", "a"]), "the label set is not valid: it has the label `a` twice; remove one");
        let spaces = "the label set is not valid: a label is empty, or begins or ends with a space; correct it";
        assert_eq!([given(&["a", ""]), given(&["a "])], [spaces, spaces]);
        for (config, problem) in [
            ("{}", "there is no `id2label` in config.json"),
            (r#"{"id2label": {"0": "a", "2": "b"}}"#, "the ids in `id2label` of config.json are not 0, 1, 2, ..."),
            (r#"{"id2label": {"0": 7}}"#, "the ids in `id2label` of config.json are not 0, 1, 2, ..."),
        ] {
            let error = LabelSet::from_config(&serde_json::from_str(config).unwrap()).unwrap_err();
            assert_eq!(error.to_string(), format!("the label set is not valid: {problem}"));
        }
    }
}
