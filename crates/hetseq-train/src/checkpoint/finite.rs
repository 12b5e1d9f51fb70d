//! Locates a non-finite value and describes it: which parameter, or which optimizer moment of which
//! parameter. Optimizers detect such values while they write (`hetseq-optim`). This module finds
//! the element afterwards, and checks values read from files.

use hetseq_optim::{Layout, first_not_finite};

/// Describes the first parameter value that is infinite or NaN: `fc1.weight is NaN at element 12`.
pub(crate) fn not_finite(layout: &Layout, parameters: &[f32]) -> Option<String> {
    let at = first_not_finite(parameters)?;
    Some(format!("{} is {} at element {}", name_at(layout, at), parameters[at], index_within(layout, at)))
}

/// Does the same for the optimizer state: `exp_avg_sq of fc1.weight is inf ...`. Most slots hold
/// one value per trainable element; for the others the message has no parameter name.
pub(crate) fn state_not_finite<'a>(
    layout: &Layout,
    slots: impl IntoIterator<Item = (&'a str, &'a [f32])>,
) -> Option<String> {
    slots.into_iter().find_map(|(slot, values)| {
        let at = first_not_finite(values)?;
        match values.len() == layout.trainable_len() {
            true => {
                let (name, element) = (name_at(layout, at), index_within(layout, at));
                Some(format!("{slot} of {name} is {} at element {element}", values[at]))
            }
            false => Some(format!("{slot} is {} at element {at}", values[at])),
        }
    })
}

fn name_at(layout: &Layout, at: usize) -> &str {
    entry_at(layout, at).map_or("", |entry| &entry.name)
}

fn index_within(layout: &Layout, at: usize) -> usize {
    entry_at(layout, at).map_or(at, |entry| at - entry.range.start)
}

fn entry_at(layout: &Layout, at: usize) -> Option<&hetseq_optim::LayoutEntry> {
    let entries = layout.entries();
    entries.get(entries.partition_point(|entry| entry.range.end <= at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_tensor_and_element() {
        let shapes = [("a", vec![2, 2]), ("none", vec![0]), ("b", vec![3])];
        let layout = Layout::new(shapes.map(|(name, shape)| (name.to_owned(), shape))).unwrap();
        let mut values = vec![1.0; 7];
        assert_eq!(not_finite(&layout, &values), None);
        assert_eq!(state_not_finite(&layout, [("exp_avg", &values[..])]), None);
        values[5] = f32::NEG_INFINITY;
        assert_eq!(not_finite(&layout, &values).unwrap(), "b is -inf at element 1");
        let slots = [("exp_avg", &[1.0; 7][..]), ("exp_avg_sq", &values)];
        assert_eq!(state_not_finite(&layout, slots).unwrap(), "exp_avg_sq of b is -inf at element 1");
        assert_eq!(state_not_finite(&layout, [("row", &[f32::NAN][..])]).unwrap(), "row is NaN at element 0");
        values[0] = f32::NAN;
        assert_eq!(not_finite(&layout, &values).unwrap(), "a is NaN at element 0");
    }
}
