//! Where events go. A sink never fails a run: the trainer turns its error into a warning.

mod console;
mod journal;

use crate::Event;

pub use console::{Console, worker_table};
pub use journal::{Journal, JsonLines};

pub trait Sink: Send {
    fn event(&mut self, event: &Event) -> std::io::Result<()>;
}
