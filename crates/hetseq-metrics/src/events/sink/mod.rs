//! Destinations of events. A sink never blocks training, and its errors never fail a run: events
//! are queued for a thread (`background` for files, `terminal` for standard error), and the trainer
//! turns errors into warnings.

mod background;
mod console;
mod journal;
mod pace;
mod queue;
mod status_line;
mod summary;
pub mod terminal;

use std::time::SystemTime;

use crate::Event;

pub use background::{Background, Overflow};
pub use journal::{Journal, JsonLines};
pub use summary::worker_table;

/// A destination of events.
pub trait Sink: Send {
    /// `time` is when it was emitted: a slow disk may delay this call.
    fn event(&mut self, event: &Event, time: SystemTime) -> std::io::Result<()>;

    /// Makes the events so far survive a power loss.
    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
