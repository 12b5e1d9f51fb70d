//! Parameter names: the path of fields to a parameter. Only this module converts names in Rust to
//! names in a checkpoint. Every visitor of a module's parameters uses a [`ParameterPath`].

/// The position of a visitor in a module. Call [`enter`](ParameterPath::enter) and
/// [`exit`](ParameterPath::exit) from `enter_module` and `exit_module`, and
/// [`name`](ParameterPath::name) at a parameter.
///
/// A name consists of the field names, joined by dots. So a model with the field names of a
/// published model can load its checkpoints. Two exceptions: a trailing underscore is dropped, for
/// field names that are Rust keywords (`self_` is `self`), and an enum adds nothing, because it
/// selects a model and is not a layer.
#[derive(Debug, Default)]
pub struct ParameterPath(Vec<String>);

impl ParameterPath {
    /// Enters a field. `container` has Burn's format: `Struct:Name`, `Enum:Name`, `Vec`, ...
    pub fn enter(&mut self, field: &str, container: &str) {
        if !is_enum(container) {
            self.0.push(field.strip_suffix('_').unwrap_or(field).to_owned());
        }
    }

    /// Leaves the current field.
    pub fn exit(&mut self, container: &str) {
        if !is_enum(container) {
            self.0.pop();
        }
    }

    /// The name at the current position.
    pub fn name(&self) -> String {
        self.0.join(".")
    }
}

fn is_enum(container: &str) -> bool {
    container.starts_with("Enum:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_enums_and_no_trailing_underscores() {
        let mut path = ParameterPath::default();
        for (field, container) in [("ConvNet", "Enum:Model"), ("self_", "Struct:A"), ("0", "Vec"), ("w_x", "Struct:B")]
        {
            path.enter(field, container);
        }
        assert_eq!(path.name(), "self.0.w_x");
        path.exit("Struct:B");
        path.exit("Vec");
        path.exit("Struct:A");
        path.exit("Enum:Model");
        assert_eq!(path.name(), "");
    }
}
