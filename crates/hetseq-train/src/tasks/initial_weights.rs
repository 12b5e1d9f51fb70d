//! The message about a `task.init` that does not exist: often it is the name of a model on the
//! Hugging Face Hub, which is not downloaded by itself. Called by tasks that start from published
//! weights, and before a new run.

use std::path::{Component, Path};

/// Says that there is nothing at `path`, and how to get it.
pub(crate) fn missing_weights(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let shown = path.display();
    match hub_name(path.strip_prefix(&here).unwrap_or(path)) {
        Some(name) => format!(
            "task.init: there is no file or directory {shown}. If {name} is a model of the Hugging Face Hub, download it \
             there first: hf download {name} --local-dir {shown} (`pip install huggingface_hub` installs hf)"
        ),
        None => format!(
            "task.init: there is no file or directory {shown}; set it to a Hugging Face directory, a checkpoint, or a \
             safetensors or PyTorch file"
        ),
    }
}

/// `path` if it can be the name of a model, such as `bert-base-uncased` or `google/bert`.
fn hub_name(path: &Path) -> Option<&str> {
    let parts: Option<Vec<&str>> = path
        .components()
        .map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let is_file = |name: &str| [".safetensors", ".bin", ".pt"].iter().any(|end| name.ends_with(end));
    let parts = parts.filter(|parts| (1..=2).contains(&parts.len()))?;
    let is_name = parts.iter().all(|part| part.chars().all(is_letter)) && !parts.iter().any(|part| is_file(part));
    if is_name { path.to_str() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_are_told_from_paths() {
        for name in ["bert-base-uncased", "sentence-transformers/all-MiniLM-L6-v2"] {
            assert_eq!(hub_name(Path::new(name)), Some(name));
        }
        for path in ["/data/bert", "../bert", "a/b/c", "weights/model.safetensors", "a b", ""] {
            assert_eq!(hub_name(Path::new(path)), None, "{path}");
        }
        let absolute = std::env::current_dir().unwrap().join("bert-base-uncased");
        let message = missing_weights(&absolute);
        assert!(message.contains("hf download bert-base-uncased --local-dir "), "{message}");
        assert!(missing_weights(Path::new("/data/bert")).contains("set it to a Hugging Face directory"));
    }
}
