//! What tensors are called in published files, against what they are called here.

/// The parameter of [`super::Bert`] that a tensor of Hugging Face's files of any age is, with or without heads. None: it is
/// not wanted, since what it says stands elsewhere in the file.
pub fn parameter_name(theirs: &str) -> Option<String> {
    let name = match theirs {
        // Tied to the word embeddings, and to the bias beside it.
        "cls.predictions.decoder.weight" => return None,
        "cls.predictions.decoder.bias" => "cls.predictions.bias",
        // A list of numbers that some versions saved.
        _ if theirs.ends_with("position_ids") => return None,
        _ => theirs,
    };
    let is_trunk = ["embeddings.", "encoder.", "pooler."].iter().any(|part| name.starts_with(part));
    let name = if is_trunk { format!("bert.{name}") } else { name.to_owned() };
    // As models that began in TensorFlow call them.
    Some(name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_age_are_known() {
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
