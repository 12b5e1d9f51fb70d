//! Names and shapes of the tensors of a checkpoint, from the header of its weights: to see that it is
//! of another model without reading it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use fs_err as fs;
use serde_json::Value;

use super::WEIGHTS;

/// Far more than the header of any model.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// Shapes by the name of the parameter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shapes(BTreeMap<String, Vec<usize>>);

impl FromIterator<(String, Vec<usize>)> for Shapes {
    fn from_iter<I: IntoIterator<Item = (String, Vec<usize>)>>(shapes: I) -> Self {
        Shapes(shapes.into_iter().collect())
    }
}

/// The shapes of the checkpoint at `path`; none if its header cannot be read.
pub(crate) fn stored_shapes(path: &Path) -> Option<Shapes> {
    let mut file = fs::File::open(path.join(WEIGHTS)).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = Some(u64::from_le_bytes(length)).filter(|&length| length <= MAX_HEADER_BYTES)?;
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).ok()?;
    // The crate reads a header only with all the data behind it.
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&header).ok()?;
    let shape = |tensor: &Value| -> Option<Vec<usize>> {
        tensor["shape"].as_array()?.iter().map(|size| usize::try_from(size.as_u64()?).ok()).collect()
    };
    header
        .iter()
        .filter(|(name, _)| *name != "__metadata__")
        .map(|(name, tensor)| Some((name.clone(), shape(tensor)?)))
        .collect()
}

impl Shapes {
    /// The first difference to the shapes of the model of the config, in words.
    pub(crate) fn difference(&self, model: &Shapes) -> Option<String> {
        for (name, now) in &model.0 {
            match self.0.get(name) {
                None => return Some(format!("it has no {name}")),
                Some(then) if then != now => {
                    return Some(format!("{name} is {} in it, {} now", shown(then), shown(now)));
                }
                _ => {}
            }
        }
        self.0.keys().find(|name| !model.0.contains_key(*name)).map(|name| format!("{name} is only in it"))
    }
}

fn shown(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named() {
        let shapes = |entries: &[(&str, &[usize])]| -> Shapes {
            entries.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect()
        };
        let stored = shapes(&[("a", &[2, 3]), ("b", &[4])]);
        assert_eq!(stored.difference(&shapes(&[("a", &[2, 3]), ("b", &[4])])), None);
        let difference = |model: &[(&str, &[usize])]| stored.difference(&shapes(model)).unwrap();
        assert_eq!(difference(&[("a", &[2, 5]), ("b", &[4])]), "a is 2 x 3 in it, 2 x 5 now");
        assert_eq!(difference(&[("a", &[2, 3]), ("b", &[4]), ("c", &[1])]), "it has no c");
        assert_eq!(difference(&[("a", &[2, 3])]), "b is only in it");
        assert_eq!(stored_shapes(Path::new("/nowhere")), None);
        let dir = tempfile::tempdir().unwrap();
        for (header, expected) in [
            (r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#, true),
            (r#"{"a":{"dtype":"F32"}}"#, false),
            ("[", false),
        ] {
            let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 24]].concat();
            fs::write(dir.path().join(WEIGHTS), bytes).unwrap();
            assert_eq!(stored_shapes(dir.path()), expected.then(|| shapes(&[("a", &[2, 3])])), "{header}");
        }
    }
}
