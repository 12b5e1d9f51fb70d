//! Destinations of events. A sink never blocks training, and its errors never fail a run: events
//! are queued for a thread (`background` for files, `terminal` for standard error), and the trainer
//! turns errors into warnings.

mod background;
mod console;
mod journal;
mod queue;
pub mod terminal;

use crate::Event;

pub use background::{Background, Overflow};
pub use console::{Console, worker_table};
pub use journal::{Journal, JsonLines};

/// A destination of events.
pub trait Sink: Send {
    fn event(&mut self, event: &Event) -> std::io::Result<()>;

    /// Makes the events so far survive a power loss.
    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
