//! Maps tensor names of published Marian files to ours.

/// Maps a tensor name of a Hugging Face Marian file to a parameter of [`super::Transformer`].
/// `None`: the tensor is a copy of another, or can be computed.
pub fn parameter_name(theirs: &str, shares_embeddings: bool) -> Option<String> {
    let is_copy = shares_embeddings && theirs.ends_with("embed_tokens.weight");
    let is_unused = !shares_embeddings && theirs == "model.shared.weight";
    (!is_copy && !is_unused && theirs != "lm_head.weight").then(|| theirs.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_ignored() {
        for (name, shares, is_used) in [
            ("model.shared.weight", true, true),
            ("model.shared.weight", false, false),
            ("model.decoder.embed_tokens.weight", true, false),
            ("model.decoder.embed_tokens.weight", false, true),
            ("lm_head.weight", true, false),
            ("final_logits_bias", true, true),
            ("model.encoder.layers.0.fc1.bias", true, true),
        ] {
            assert_eq!(parameter_name(name, shares).is_some(), is_used, "{name}, {shares}");
        }
    }
}
