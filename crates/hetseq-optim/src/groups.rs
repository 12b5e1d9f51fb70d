//! Parameter groups: a learning-rate scale and weight decay for each parameter.
//!
//! They are what `param_groups` are in PyTorch, and `lr_scale` is the key of that name in timm. A
//! group holds no learning rate: the caller passes that to each step. Built by the trainer, read by
//! the optimizer.

use crate::{Layout, LayoutEntry, OptimError, decays, layer_decay};

/// The settings of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParameterGroup {
    /// The parameter's learning rate is `lr * lr_scale`, one multiplication in `f32`. It applies
    /// wherever the rule uses a learning rate, decoupled weight decay included. Finite and at least
    /// 0.
    ///
    /// With 0, steps leave every bit of the parameter unchanged but update its moments.
    pub lr_scale: f32,
    /// Whether `weight_decay` applies.
    pub decays: bool,
}

impl ParameterGroup {
    /// The default: the whole learning rate, and weight decay by the rule of [`decays`].
    pub fn by_shape(entry: &LayoutEntry) -> ParameterGroup {
        ParameterGroup { lr_scale: 1.0, decays: decays(entry) }
    }

    /// The learning rate of this group in a step. With a scale of 1 it is exactly `lr`.
    pub(crate) fn rate(&self, lr: f32) -> f32 {
        lr * self.lr_scale
    }

    /// The weight decay of this group, if that of the optimizer is `weight_decay`.
    pub(crate) fn weight_decay(&self, weight_decay: f64) -> f64 {
        if self.decays { weight_decay } else { 0.0 }
    }

    /// Whether steps leave the parameter unchanged.
    pub(crate) fn has_zero_rate(&self) -> bool {
        self.lr_scale == 0.0
    }
}

/// The group of each parameter of one [`Layout`]. Those of frozen parameters have no effect.
///
/// All ranks must use equal groups, or their replicas drift apart. Checkpoints do not hold them.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterGroups {
    groups: Vec<ParameterGroup>,
    layout_hash: u64,
}

impl ParameterGroups {
    /// Calls `group` for each parameter, in order. Refuses scales that are negative or not finite.
    pub fn new(layout: &Layout, group: impl Fn(&LayoutEntry) -> ParameterGroup) -> Result<ParameterGroups, OptimError> {
        let checked = |entry: &LayoutEntry| {
            let ParameterGroup { lr_scale, decays } = group(entry);
            if !(lr_scale >= 0.0 && lr_scale.is_finite()) {
                return Err(OptimError::LearningRateScale { name: entry.name.clone(), value: lr_scale });
            }
            // `abs` turns -0 into 0, so that equal scales have equal bits.
            Ok(ParameterGroup { lr_scale: lr_scale.abs(), decays })
        };
        let groups = layout.entries().iter().map(checked).collect::<Result<_, _>>()?;
        Ok(ParameterGroups { groups, layout_hash: layout.hash() })
    }

    /// The default: [`ParameterGroup::by_shape`] for each parameter.
    pub fn by_shape(layout: &Layout) -> ParameterGroups {
        let groups = layout.entries().iter().map(ParameterGroup::by_shape).collect();
        ParameterGroups { groups, layout_hash: layout.hash() }
    }

    /// The default with the learning-rate scales of [`layer_decay`], for fine-tuning.
    pub fn with_layer_decay(layout: &Layout, decay: f64) -> Result<ParameterGroups, OptimError> {
        let scales = layer_decay(layout.entries().iter().map(|entry| entry.name.as_str()), decay)?;
        let mut groups = ParameterGroups::by_shape(layout);
        for (group, lr_scale) in groups.groups.iter_mut().zip(scales) {
            group.lr_scale = lr_scale;
        }
        Ok(groups)
    }

    /// The groups in the order of the layout's parameters.
    pub fn as_slice(&self) -> &[ParameterGroup] {
        &self.groups
    }

    /// Refuses groups that were built from another layout.
    pub(crate) fn check_layout(&self, layout: &Layout) -> Result<(), OptimError> {
        if self.layout_hash == layout.hash() {
            return Ok(());
        }
        Err(OptimError::GroupsOfOtherLayout { groups: self.groups.len(), parameters: layout.entries().len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let shapes: [(&str, &[usize]); 3] = [("dense.weight", &[2, 3]), ("dense.bias", &[3]), ("scale", &[])];
        Layout::new(shapes.map(|(n, s)| (n.to_owned(), s.to_vec()))).unwrap()
    }

    #[test]
    fn a_scale_that_is_negative_or_not_finite_names_the_parameter() {
        for wrong in [-0.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let lr_scale = |entry: &LayoutEntry| if entry.name == "dense.bias" { wrong } else { 1.0 };
            let groups =
                ParameterGroups::new(&layout(), |entry| ParameterGroup { lr_scale: lr_scale(entry), decays: true });
            let message = groups.unwrap_err().to_string();
            assert!(message.contains("`dense.bias`") && message.contains(&wrong.to_string()), "{message}");
        }
    }

    #[test]
    fn zeros_of_both_signs_are_equal() {
        let groups = |lr_scale| ParameterGroups::new(&layout(), |_| ParameterGroup { lr_scale, decays: true }).unwrap();
        assert!(groups(-0.0).as_slice().iter().all(|group| group.lr_scale.to_bits() == 0));
        assert_eq!(groups(-0.0), groups(0.0));
    }

    #[test]
    fn the_default_has_a_scale_of_one_and_decays_by_shape() {
        let groups = ParameterGroups::by_shape(&layout());
        let expected = [true, false, false].map(|decays| ParameterGroup { lr_scale: 1.0, decays });
        assert_eq!(groups.as_slice(), expected);
        assert_eq!(ParameterGroups::new(&layout(), ParameterGroup::by_shape), Ok(groups));
    }

    #[test]
    fn layer_decay_changes_the_scales_only() {
        let names = ["bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.output.dense.weight", "cls.bias"];
        let layout = Layout::new(names.map(|name| (name.to_owned(), vec![2, 2]))).unwrap();
        let groups = ParameterGroups::with_layer_decay(&layout, 0.5).unwrap();
        let expected = [(0.25, true), (0.5, true), (1.0, false)];
        assert_eq!(groups.as_slice(), expected.map(|(lr_scale, decays)| ParameterGroup { lr_scale, decays }));
        assert!(ParameterGroups::with_layer_decay(&layout, f64::NAN).is_err());
    }
}
