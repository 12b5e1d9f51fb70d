//! Documents, or pairs of lines, in chunks: one thread reads, all cores work, and results come back in order.
//!
//! What is in a chunk, and where a part ends, depends on the text alone, never on the number of cores. Memory holds a few
//! chunks per core.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rayon::prelude::*;

use super::Watch;
use crate::error::DataError;
use crate::source::text::{Document, LinePair};

/// Text per chunk: enough to be worth a task, little enough that a core's share of them fits into any memory.
const CHUNK_BYTES: usize = 1 << 20;
/// Chunks worked on at a time, per core: the slowest of many keeps the others waiting less.
const CHUNKS_PER_CORE: usize = 4;

/// What text is read in.
pub(super) trait Item: Send {
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

/// Some items that follow each other.
#[derive(Debug)]
pub(super) struct Chunk<T> {
    /// The number of the first.
    pub(super) first: u64,
    pub(super) items: Vec<T>,
    ends_part: bool,
    ends_text: bool,
}

/// Where a chunk ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkEnd {
    /// The number of the item after it.
    pub(super) next_item: u64,
    pub(super) ends_part: bool,
    /// There is no other.
    pub(super) ends_text: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkLimits {
    /// Items before it are passed over.
    pub(super) from: u64,
    /// How much text makes a part.
    pub(super) part_bytes: usize,
}

/// Calls `work` with each chunk on all cores, and `take` with what it gave, in order. False if it was stopped.
pub(super) fn for_each_chunk<T: Item + Sync, R: Send>(
    items: impl Iterator<Item = Result<T, DataError>> + Send,
    limits: ChunkLimits,
    read: &AtomicU64,
    watch: &dyn Watch,
    work: impl Fn(&Chunk<T>) -> Result<R, DataError> + Sync,
    mut take: impl FnMut(ChunkEnd, R) -> Result<(), DataError>,
) -> Result<bool, DataError> {
    let window = CHUNKS_PER_CORE * rayon::current_num_threads();
    let (sender, receiver) = sync_channel(window);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let failure = read_chunks(items, limits, &sender).err();
            // Nobody listens any more if the other side has failed or stopped.
            failure.map(|error| sender.send(Err(error)))
        });
        // Moved in, so that it goes, and with it the reader's reason to read, however this ends.
        let receiver: Receiver<Result<Chunk<T>, DataError>> = receiver;
        loop {
            let chunks: Vec<Chunk<T>> = receiver.iter().take(window).collect::<Result<_, _>>()?;
            if chunks.is_empty() {
                return Ok(true);
            }
            let results: Vec<Result<R, DataError>> = chunks.par_iter().map(&work).collect();
            for (chunk, result) in chunks.iter().zip(results) {
                if watch.is_stopped() {
                    return Ok(false);
                }
                let next_item = chunk.first + chunk.items.len() as u64;
                let end = ChunkEnd { next_item, ends_part: chunk.ends_part, ends_text: chunk.ends_text };
                take(end, result?)?;
            }
            watch.reached(read.load(Ordering::Relaxed));
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
        // Sent when the next item is there, so that the last chunk can be known as the last.
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
