//! Everything that can go wrong in this crate, as one enum whose variants carry the facts.
//!
//! Buffers of the wrong length handed to a step are no variant: the caller made them from the same
//! layout, so a mismatch is a defect of the program and asserts. What a user, a file or a peer can
//! get wrong is here.

/// A layout, a configuration or a saved state that cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OptimError {
    #[error(
        "parameter `{name}` appears twice in the layout, at positions {first} and {second}; \
         give every parameter its own name"
    )]
    DuplicateParameter { name: String, first: usize, second: usize },

    #[error(
        "the layout has too many elements for this machine at parameter `{name}` of shape {shape:?}; \
         check the model's sizes"
    )]
    LayoutTooLarge { name: String, shape: Vec<usize> },

    #[error("{owner}: `{key}` is {value}, but it must be {rule}")]
    Setting {
        /// Which optimizer or schedule, as it is called in the configuration.
        owner: String,
        key: &'static str,
        value: String,
        rule: String,
    },

    #[error(
        "the saved optimizer state has no `{name}`, which {optimizer} needs here; it was saved with other \
         settings or is incomplete: set the optimizer as in the saved run, or start without its state"
    )]
    MissingState { name: String, optimizer: &'static str },

    #[error(
        "the saved optimizer state has `{name}`, which {optimizer} does not use here (it uses {used}); it was \
         saved with other settings: set the optimizer as in the saved run, or start without its state"
    )]
    UnknownState { name: String, optimizer: &'static str, used: String },

    #[error("the saved optimizer state has `{name}` twice; the checkpoint is damaged, use another one")]
    DuplicateState { name: String },

    #[error(
        "the saved optimizer state `{name}` has {found} elements, but the model has {expected}; \
         resume with the model it was saved from"
    )]
    StateLength { name: String, expected: usize, found: usize },

    #[error(
        "the saved optimizer scalar `{name}` is {value}, but it must be {rule}; \
         the checkpoint is damaged, use another one"
    )]
    StateScalar { name: String, value: f64, rule: &'static str },
}
