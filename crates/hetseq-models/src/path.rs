//! What a parameter is called: the path of fields that leads to it. The one place that knows how a name in Rust becomes a
//! name in a checkpoint; whoever visits a module's parameters keeps a [`ParameterPath`].

/// Where a visitor is in a module. Hand it `enter_module` and `exit_module`, ask for the name at a parameter.
///
/// Names are those of the fields, joined by dots, so a model that takes over a published model's field names takes over
/// its checkpoints too. Two exceptions: a trailing underscore is left out, for names that are words of Rust
/// (`self_` is `self`), and an enum adds nothing, since it is a choice between models and not a layer.
#[derive(Debug, Default)]
pub struct ParameterPath(Vec<String>);

impl ParameterPath {
    /// As in Burn's visitors: `container` is `Struct:Name`, `Enum:Name`, `Vec`, ...
    pub fn enter(&mut self, field: &str, container: &str) {
        if !is_choice(container) {
            self.0.push(field.strip_suffix('_').unwrap_or(field).to_owned());
        }
    }

    pub fn exit(&mut self, container: &str) {
        if !is_choice(container) {
            self.0.pop();
        }
    }

    pub fn name(&self) -> String {
        self.0.join(".")
    }
}

fn is_choice(container: &str) -> bool {
    container.starts_with("Enum:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_joined_without_choices_and_trailing_underscores() {
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
