//! Maps tensor names of published BERT files to ours.

/// Maps a tensor name of a Hugging Face file, of any version and with or without heads, to a
/// parameter of [`super::Bert`]. `None`: the tensor is redundant.
pub fn parameter_name(theirs: &str) -> Option<String> {
    let name = match theirs {
        // Tied to the word embeddings and to `cls.predictions.bias`.
        "cls.predictions.decoder.weight" => return None,
        "cls.predictions.decoder.bias" => "cls.predictions.bias",
        // The numbers 0, 1, ..., which some versions saved.
        _ if theirs.ends_with("position_ids") => return None,
        _ => theirs,
    };
    let is_trunk = ["embeddings.", "encoder.", "pooler."].iter().any(|part| name.starts_with(part));
    let name = if is_trunk { format!("bert.{name}") } else { name.to_owned() };
    // Names of models converted from TensorFlow.
    Some(name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_versions_are_mapped() {
        for (theirs, ours) in [
            ("bert.pooler.dense.bias", Some("bert.pooler.dense.bias")),
            ("encoder.layer.0.output.LayerNorm.gamma", Some("bert.encoder.layer.0.output.LayerNorm.weight")),
            ("embeddings.LayerNorm.beta", Some("bert.embeddings.LayerNorm.bias")),
            ("cls.predictions.transform.LayerNorm.gamma", Some("cls.predictions.transform.LayerNorm.weight")),
            ("cls.predictions.decoder.bias", Some("cls.predictions.bias")),
            ("cls.predictions.decoder.weight", None),
            ("bert.embeddings.position_ids", None),
        ] {
            assert_eq!(parameter_name(theirs).as_deref(), ours, "{theirs}");
        }
    }
}
