//! Where events go. A sink never blocks training and an error of a sink never fails a run: events are queued for a thread
//! (`background.rs` for files, `terminal.rs` for standard error), and the trainer turns what went wrong into a warning.

mod background;
mod console;
mod journal;
mod queue;
pub mod terminal;

use crate::Event;

pub use background::{Background, Overflow};
pub use console::{Console, worker_table};
pub use journal::{Journal, JsonLines};

pub trait Sink: Send {
    fn event(&mut self, event: &Event) -> std::io::Result<()>;

    /// Events so far survive a loss of power.
    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
