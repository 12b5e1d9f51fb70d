//! `optim.frozen`: finds the parameters that it names. A pure function of the layout; called by
//! whatever trains.

use std::collections::BTreeSet;

use glob::Pattern;
use hetseq_optim::Layout;

use super::Optim;
use super::names::did_you_mean;
use crate::error::TrainError;

impl Optim {
    /// Freezes the parameters that `frozen` names. An entry names a parameter or a module, that is
    /// all parameters whose names continue after it with a dot. Refuses entries that name nothing,
    /// and a layout with nothing to train.
    pub(crate) fn freeze(&self, layout: Layout) -> Result<Layout, TrainError> {
        freeze(&self.frozen, layout).map_err(|reason| TrainError::Config(format!("optim.frozen: {reason}")))
    }
}

fn freeze(frozen: &[String], layout: Layout) -> Result<Layout, String> {
    if frozen.is_empty() {
        return Ok(layout);
    }
    let mut patterns = Vec::new();
    for text in frozen {
        let pattern = Pattern::new(text).map_err(|error| format!("`{text}` is not a pattern of names: {error}"))?;
        if !layout.entries().iter().any(|entry| names(&pattern, &entry.name)) {
            return Err(unknown(text, &layout));
        }
        patterns.push(pattern);
    }
    let of_task: BTreeSet<String> = layout.frozen_entries().iter().map(|entry| entry.name.clone()).collect();
    let layout = layout
        .freeze(|entry| of_task.contains(&entry.name) || patterns.iter().any(|pattern| names(pattern, &entry.name)));
    match layout.trainable_len() {
        0 => Err("no parameter is left to train; name fewer modules".to_owned()),
        _ => Ok(layout),
    }
}

/// Whether the pattern names the parameter or a module that it is in.
fn names(pattern: &Pattern, parameter: &str) -> bool {
    modules(parameter).chain([parameter]).any(|name| pattern.matches(name))
}

/// The modules that a parameter is in, the outermost first.
fn modules(parameter: &str) -> impl Iterator<Item = &str> {
    parameter.match_indices('.').map(|(at, _)| &parameter[..at])
}

fn unknown(text: &str, layout: &Layout) -> String {
    let parameters = || layout.entries().iter().map(|entry| entry.name.as_str());
    let known: BTreeSet<&str> = parameters().flat_map(|name| modules(name).chain([name])).collect();
    let hint = did_you_mean(text, known.into_iter());
    // Two levels are a short list, and show how names begin.
    let mut outer: Vec<&str> = parameters().map(|name| modules(name).take(2).last().unwrap_or(name)).collect();
    outer.dedup();
    format!("the model has no module or parameter `{text}`.{hint} Its modules: {}", outer.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let mut names: Vec<String> = ["word_embeddings", "position_embeddings", "LayerNorm"]
            .map(|name| format!("bert.embeddings.{name}.weight"))
            .to_vec();
        for layer in 0..12 {
            names.extend(["query.weight", "query.bias"].map(|name| format!("bert.encoder.layer.{layer}.{name}")));
        }
        names.extend(["bert.pooler.dense.weight", "classifier.weight", "classifier.bias"].map(str::to_owned));
        Layout::new(names.into_iter().map(|name| (name, vec![2]))).unwrap()
    }

    fn frozen(entries: &[&str]) -> Result<Vec<String>, String> {
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        let layout = freeze(&entries, layout())?;
        Ok(layout.frozen_entries().iter().map(|entry| entry.name.clone()).collect())
    }

    #[test]
    fn an_entry_names_a_parameter_or_a_module() {
        assert_eq!(frozen(&[]).unwrap(), [""; 0]);
        assert_eq!(frozen(&["classifier.bias"]).unwrap(), ["classifier.bias"]);
        assert_eq!(frozen(&["bert.embeddings", "bert.embeddings.LayerNorm"]).unwrap().len(), 3);
        // Layer 1, not layers 10 and 11.
        let expected = ["query.weight", "query.bias"].map(|name| format!("bert.encoder.layer.1.{name}"));
        assert_eq!(frozen(&["bert.encoder.layer.1"]).unwrap(), expected);
    }

    #[test]
    fn patterns_are_those_of_a_shell() {
        let layers = |entries: &[&str]| -> BTreeSet<u32> {
            let names = frozen(entries).unwrap().into_iter();
            names.map(|name| name.split('.').nth(3).unwrap().parse().unwrap()).collect()
        };
        assert_eq!(layers(&["bert.encoder.layer.[0-3]"]), (0..4).collect());
        assert_eq!(layers(&["bert.encoder.layer.?", "bert.encoder.layer.1[01]"]), (0..12).collect());
        assert_eq!(frozen(&["*.bias"]).unwrap().len(), 13);
        assert_eq!(frozen(&["bert.*"]).unwrap().len(), 28);
    }

    #[test]
    fn wrong_entries_are_refused() {
        for (entry, expected) in [
            ("bert.embedings", "no module or parameter `bert.embedings`. Did you mean `bert.embeddings`?"),
            ("encoder.layer.0", "Did you mean `bert.encoder.layer.0`?"),
            ("bert.embeddings.", "Did you mean `bert.embeddings`?"),
            ("bert.encoder.layer.[0-3", "`bert.encoder.layer.[0-3` is not a pattern of names"),
            ("xyz", "`xyz`. Its modules: bert.embeddings, bert.encoder, bert.pooler, classifier"),
            ("", "no module or parameter ``"),
            ("*", "no parameter is left to train"),
        ] {
            let error = frozen(&["classifier.bias", entry]).unwrap_err();
            assert!(error.contains(expected), "{entry}: {error}");
        }
        assert!(frozen(&["bert", "classifier"]).is_err());
    }
}
