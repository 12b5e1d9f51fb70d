//! Layer-wise learning-rate decay: smaller rates for layers farther from the head.
//!
//! A pure function from parameter names to scales; [`crate::ParameterGroups`] uses it. Fine-tuning
//! changes the lower layers of a pretrained model less this way (ELECTRA uses 0.8 and 0.9).

use crate::OptimError;

/// The learning-rate scale of each parameter, in the order of `names`.
///
/// A parameter of depth `d` has the scale `decay^(max_depth - d)`:
/// - Embeddings have depth 0. Their path has a part that begins with `embed` or ends with
///   `embedding` or `embeddings`, or is `wte` or `wpe`.
/// - Layer `N` has depth `N + 1`. Its path has `layers.N`, `h.N`, `encoder.layer.N` or
///   `transformer.layer.N`. An encoder and a decoder have the same depths.
/// - Everything else is at `max_depth`, the number of layers + 1, and has the scale 1: poolers,
///   heads, and names of other models.
///
/// The first part of a path that fits decides: a layer's own embedding belongs to the layer.
///
/// `names` must include the last layer. `decay` must be above 0 and at most 1.
pub fn layer_decay<'a>(names: impl IntoIterator<Item = &'a str>, decay: f64) -> Result<Vec<f32>, OptimError> {
    if !(decay > 0.0 && decay <= 1.0) {
        let rule = "above 0 and at most 1, where 1 means no decay".to_owned();
        let owner = "layer-wise learning-rate decay".to_owned();
        return Err(OptimError::Setting { owner, key: "layer_decay", value: decay.to_string(), rule });
    }
    let depths: Vec<Option<usize>> = names.into_iter().map(depth).collect();
    let max_depth = depths.iter().flatten().max().map_or(0, |deepest| deepest + 1);
    // By repeated multiplication: `powf` may differ between platforms, and replicas with it.
    let powers: Vec<f32> =
        std::iter::successors(Some(1.0), |power| Some(power * decay)).take(max_depth + 1).map(|p| p as f32).collect();
    Ok(depths.into_iter().map(|depth| depth.map_or(1.0, |depth| powers[max_depth - depth])).collect())
}

/// The depth of an embedding or of a layer's parameter; `None` for all others.
fn depth(name: &str) -> Option<usize> {
    let parts: Vec<&str> = name.split('.').collect();
    parts.iter().enumerate().find_map(|(at, part)| {
        if is_embedding(part) {
            return Some(0);
        }
        let before = at.checked_sub(1).map(|at| parts[at]);
        let is_stack = match *part {
            "layers" | "h" => true,
            // Other uses of `layer.N` are parts of one layer, as in T5's `block.0.layer.1`.
            "layer" => matches!(before, Some("encoder" | "transformer")),
            _ => false,
        };
        // `u16` bounds the table of powers whatever the names are.
        let index = parts.get(at + 1).filter(|_| is_stack)?.parse::<u16>().ok()?;
        Some(usize::from(index) + 1)
    })
}

fn is_embedding(part: &str) -> bool {
    part.starts_with("embed")
        || part.ends_with("embedding")
        || part.ends_with("embeddings")
        || ["wte", "wpe"].contains(&part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn depths_of_usual_names() {
        for (name, expected) in [
            ("bert.embeddings.word_embeddings.weight", Some(0)),
            ("embeddings.LayerNorm.weight", Some(0)),
            ("transformer.wte.weight", Some(0)),
            ("model.encoder.embed_tokens.weight", Some(0)),
            ("deberta.encoder.rel_embeddings.weight", Some(0)),
            ("bert.encoder.layer.0.attention.self.query.weight", Some(1)),
            ("bert.encoder.layer.11.output.dense.bias", Some(12)),
            ("bert.encoder.layer.3.attention.self.distance_embedding.weight", Some(4)),
            ("distilbert.transformer.layer.5.ffn.lin1.weight", Some(6)),
            ("model.decoder.layers.5.fc1.bias", Some(6)),
            ("transformer.h.2.attn.c_attn.weight", Some(3)),
            ("bert.pooler.dense.weight", None),
            ("cls.predictions.transform.dense.weight", None),
            ("classifier.bias", None),
            ("transformer.ln_f.weight", None),
            ("layer1.0.conv1.weight", None),
            ("encoder.block.0.layer.1.DenseReluDense.wi.weight", None),
            ("layers.weight", None),
            ("layers.-1.weight", None),
            ("layers.70000.weight", None),
            ("encoder.layer", None),
            ("h", None),
            ("", None),
        ] {
            assert_eq!(depth(name), expected, "{name}");
        }
    }

    #[test]
    fn scales_of_a_small_model() {
        let names = [
            "bert.embeddings.word_embeddings.weight",
            "bert.encoder.layer.0.output.dense.weight",
            "bert.encoder.layer.1.output.dense.weight",
            "bert.pooler.dense.weight",
        ];
        assert_eq!(layer_decay(names, 0.5), Ok(vec![0.125, 0.25, 0.5, 1.0]));
        // 0.9 * 0.9 * 0.9 in f64, rounded once.
        assert_eq!(layer_decay(names, 0.9).unwrap()[0].to_bits(), ((0.9f64 * 0.9 * 0.9) as f32).to_bits());
        assert_eq!(layer_decay(names, 1.0), Ok(vec![1.0; 4]));
        assert_eq!(layer_decay([], 0.5), Ok(vec![]));
        // Without known names there is nothing to decay.
        assert_eq!(layer_decay(["conv1.weight", "fc.bias"], 0.5), Ok(vec![1.0, 1.0]));
    }

    #[test]
    fn a_decay_out_of_range_is_refused() {
        for wrong in [0.0, -0.5, 1.1, f64::NAN, f64::INFINITY] {
            let error = layer_decay(["h.0.weight"], wrong).unwrap_err();
            assert!(matches!(error, OptimError::Setting { key: "layer_decay", .. }), "{error}");
        }
    }

    proptest! {
        #[test]
        fn scales_rise_with_depth_to_one_at_the_head(layers in 0usize..80, decay in 1e-3..=1.0f64) {
            let mut names = vec!["embeddings.weight".to_owned()];
            names.extend((0..layers).map(|i| format!("encoder.layer.{i}.weight")));
            names.push("classifier.weight".to_owned());
            let scales = layer_decay(names.iter().map(String::as_str), decay).unwrap();
            prop_assert_eq!(scales.len(), layers + 2);
            prop_assert_eq!(scales[layers + 1], 1.0);
            prop_assert!(scales.windows(2).all(|pair| pair[0] <= pair[1]), "{:?}", scales);
            prop_assert!(scales.iter().all(|scale| (0.0..=1.0).contains(scale)));
            // The order of the names does not matter.
            let reversed = layer_decay(names.iter().rev().map(String::as_str), decay).unwrap();
            prop_assert!(reversed.iter().rev().eq(&scales));
        }

        #[test]
        fn any_name_has_a_valid_scale(names in prop::collection::vec("[a-z.0-9]{0,20}|(h|layers)[.][0-9]{1,7}", 0..8)) {
            let scales = layer_decay(names.iter().map(String::as_str), 0.9).unwrap();
            prop_assert_eq!(scales.len(), names.len());
            prop_assert!(scales.iter().all(|scale| (0.0..=1.0).contains(scale)));
        }
    }
}
