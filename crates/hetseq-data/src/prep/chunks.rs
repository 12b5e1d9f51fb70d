//! Parallel processing of documents or line pairs in chunks: one thread reads, all cores process,
//! and results come back in order. Called by all preparations.
//!
//! The content of a chunk and the end of a part depend on the text only, never on the number of
//! cores. Memory holds a few chunks per core.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rayon::prelude::*;

use super::PrepObserver;
use crate::error::DataError;
use crate::source::text::{Document, LinePair};

/// Text per chunk: large enough to be worth a task, small enough that a core's chunks fit into
/// memory.
const CHUNK_BYTES: usize = 1 << 20;
/// Chunks processed at a time, per core: with many chunks, waiting for the slowest one costs less.
const CHUNKS_PER_CORE: usize = 4;

/// A unit of text: a document or a pair of lines.
pub(super) trait Item: Send {
    /// The size of its text.
    fn bytes(&self) -> usize;
}

impl Item for Document {
    fn bytes(&self) -> usize {
        self.text.len()
    }
}

impl Item for LinePair {
    fn bytes(&self) -> usize {
        self.lines[0].len() + self.lines[1].len()
    }
}

/// Consecutive items.
#[derive(Debug)]
pub(super) struct Chunk<T> {
    /// The number of the first item.
    pub(super) first: u64,
    pub(super) items: Vec<T>,
    ends_part: bool,
    ends_text: bool,
}

/// The end of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkEnd {
    /// The number of the item after it.
    pub(super) next_item: u64,
    pub(super) ends_part: bool,
    /// It is the last chunk.
    pub(super) ends_text: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkLimits {
    /// Items before this one are skipped.
    pub(super) from: u64,
    /// Text per part.
    pub(super) part_bytes: usize,
}

/// Calls `work` with each chunk on all cores, and `take` with each result, in order. False if the
/// observer stopped it.
pub(super) fn for_each_chunk<T: Item + Sync, R: Send>(
    items: impl Iterator<Item = Result<T, DataError>> + Send,
    limits: ChunkLimits,
    read: &AtomicU64,
    observer: &dyn PrepObserver,
    work: impl Fn(&Chunk<T>) -> Result<R, DataError> + Sync,
    mut take: impl FnMut(ChunkEnd, R) -> Result<(), DataError>,
) -> Result<bool, DataError> {
    let window = CHUNKS_PER_CORE * rayon::current_num_threads();
    let (sender, receiver) = sync_channel(window);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let failure = read_chunks(items, limits, &sender).err();
            // The send fails if the receiver is gone because processing failed or stopped.
            failure.map(|error| sender.send(Err(error)))
        });
        // Moved in, so that it is dropped on every return and the reader stops.
        let receiver: Receiver<Result<Chunk<T>, DataError>> = receiver;
        loop {
            let chunks: Vec<Chunk<T>> = receiver.iter().take(window).collect::<Result<_, _>>()?;
            if chunks.is_empty() {
                return Ok(true);
            }
            let results: Vec<Result<R, DataError>> = chunks.par_iter().map(&work).collect();
            for (chunk, result) in chunks.iter().zip(results) {
                if observer.is_stopped() {
                    return Ok(false);
                }
                let next_item = chunk.first + chunk.items.len() as u64;
                let end = ChunkEnd { next_item, ends_part: chunk.ends_part, ends_text: chunk.ends_text };
                take(end, result?)?;
            }
            observer.progress(read.load(Ordering::Relaxed));
        }
    })
}

fn read_chunks<T: Item>(
    items: impl Iterator<Item = Result<T, DataError>>,
    limits: ChunkLimits,
    sender: &SyncSender<Result<Chunk<T>, DataError>>,
) -> Result<(), DataError> {
    let mut chunk = Chunk { first: limits.from, items: Vec::new(), ends_part: false, ends_text: false };
    let (mut chunk_bytes, mut part_bytes) = (0, 0);
    for (number, item) in items.enumerate() {
        let item = item?;
        if (number as u64) < limits.from {
            continue;
        }
        // Sent only when the next item has been read, so that the last chunk is known to be the
        // last.
        if chunk_bytes >= CHUNK_BYTES || part_bytes >= limits.part_bytes {
            chunk.ends_part = part_bytes >= limits.part_bytes;
            if chunk.ends_part {
                part_bytes = 0;
            }
            chunk_bytes = 0;
            let next = Chunk { first: number as u64, items: Vec::new(), ends_part: false, ends_text: false };
            if sender.send(Ok(std::mem::replace(&mut chunk, next))).is_err() {
                return Ok(());
            }
        }
        chunk_bytes += item.bytes();
        part_bytes += item.bytes();
        chunk.items.push(item);
    }
    chunk.ends_part = true;
    chunk.ends_text = true;
    let _ = sender.send(Ok(chunk));
    Ok(())
}
