//! The task's own decisions. The command-line tests cover training.

use fs_err as fs;

use super::*;

fn config(text: &str) -> BertTaskConfig {
    toml::from_str(&format!("data = \"somewhere\"\n{text}")).unwrap()
}

fn refusal(text: &str) -> String {
    config(text).model_keys().model(None).unwrap_err().to_string()
}

#[test]
fn a_published_size_uses_the_vocabulary_of_the_data() {
    let (model, file) = config("model = \"mini\"\ndropout = 0.2").model_keys().model(Some(1234)).unwrap();
    assert_eq!((model.vocab_size, model.hidden_size, file), (1234, 256, None));
    assert_eq!((model.hidden_dropout_prob, model.attention_probs_dropout_prob), (0.2, 0.2));
    assert_eq!(config("model = \"mini\"").model_keys().model(None).unwrap().0.vocab_size, 30_522);
}

#[test]
fn the_config_of_the_initial_weights_applies_unless_another_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let (init, other) = (dir.path().join("init"), dir.path().join("other.json"));
    fs::create_dir(&init).unwrap();
    let write = |path: &Path, width| fs::write(path, format!("{{\"hidden_size\": {width}}}")).unwrap();
    write(&init.join("config.json"), 96);
    write(&other, 48);
    let key = |key: &str, path: &Path| format!("{key} = \"{}\"\n", path.display());
    let width = |text: &str| config(text).model_keys().model(None).unwrap().0.hidden_size;
    assert_eq!(width(&key("init", &init)), 96);
    assert_eq!(width(&(key("init", &init) + &key("config", &other))), 48);
    assert_eq!(width(&(key("init", &init) + "model = \"tiny\"")), 128);
    assert_eq!(width(&key("config", &init)), 96);
}

#[test]
fn the_model_must_be_defined_once() {
    assert!(refusal("").contains("define the model: task.model"));
    assert!(refusal("model = \"tiny\"\nconfig = \"x.json\"").contains("both define the model"));
    assert!(refusal("init = \"nowhere\"").contains("hf download nowhere --local-dir nowhere"));
    let dir = tempfile::tempdir().unwrap();
    let empty = format!("init = \"{}\"", dir.path().display());
    assert!(refusal(&empty).contains(&format!("there is no config.json in task.init = {}", dir.path().display())));
    assert!(refusal("model = \"tiny\"\ndropout = 1.0").contains("task.dropout = 1"));
}
