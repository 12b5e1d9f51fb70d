//! The errors of this crate, as one enum whose variants carry the details.
//!
//! It covers mistakes of users, files and peers. A step with buffers of the wrong length is not a
//! variant: the caller made them from the same layout, so a mismatch is a bug and panics.

/// An invalid layout, configuration or saved state.
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

    #[error(
        "the learning-rate scale of parameter `{name}` is {value}, but it must be finite and at least 0; \
         use 0 to keep the parameter unchanged"
    )]
    LearningRateScale { name: String, value: f32 },

    #[error(
        "the parameter groups ({groups} of them) were built from another layout than the optimizer's, which has \
         {parameters} parameters; build both from the same layout"
    )]
    GroupsOfOtherLayout { groups: usize, parameters: usize },

    #[error("{owner}: `{key}` is {value}, but it must be {rule}")]
    Setting {
        /// The optimizer or schedule, with its name in the configuration.
        owner: String,
        key: &'static str,
        value: String,
        rule: String,
    },

    #[error(
        "the saved optimizer state has no `{name}`, which {optimizer} needs; it was saved with other \
         settings or is incomplete: use the optimizer settings of the saved run, or start without its state"
    )]
    MissingState { name: String, optimizer: &'static str },

    #[error(
        "the saved optimizer state has `{name}`, which {optimizer} does not use (it uses {used}); it was \
         saved with other settings: use the optimizer settings of the saved run, or start without its state"
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
