//! Documents in chunks: one thread reads, all cores work, and results come back in order.
//!
//! What is in a chunk, and where a part ends, depends on the text alone, never on the number of cores. Memory holds a few
//! chunks per core.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rayon::prelude::*;

use super::Watch;
use crate::error::DataError;
use crate::source::text::{Document, Documents};

/// Text per chunk: enough to be worth a task, little enough that a core's share of them fits into any memory.
const CHUNK_BYTES: usize = 1 << 20;
/// Chunks worked on at a time, per core: the slowest of many keeps the others waiting less.
const CHUNKS_PER_CORE: usize = 4;

/// Some documents that follow each other.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The number of the first.
    pub(super) first: u64,
    pub(super) documents: Vec<Document>,
    ends_part: bool,
    ends_text: bool,
}

/// Where a chunk ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkEnd {
    /// The number of the document after it.
    pub(super) next_document: u64,
    pub(super) ends_part: bool,
    /// There is no other.
    pub(super) ends_text: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkLimits {
    /// Documents before it are passed over.
    pub(super) from: u64,
    /// How much text makes a part.
    pub(super) part_bytes: usize,
}

/// Calls `work` with each chunk on all cores, and `take` with what it gave, in order. False if it was stopped.
pub(super) fn for_each_chunk<R: Send>(
    documents: Documents,
    limits: ChunkLimits,
    read: &AtomicU64,
    watch: &dyn Watch,
    work: impl Fn(&Chunk) -> Result<R, DataError> + Sync,
    mut take: impl FnMut(ChunkEnd, R) -> Result<(), DataError>,
) -> Result<bool, DataError> {
    let window = CHUNKS_PER_CORE * rayon::current_num_threads();
    let (sender, receiver) = sync_channel(window);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let failure = read_chunks(documents, limits, &sender).err();
            // Nobody listens any more if the other side has failed or stopped.
            failure.map(|error| sender.send(Err(error)))
        });
        // Moved in, so that it goes, and with it the reader's reason to read, however this ends.
        let receiver: Receiver<Result<Chunk, DataError>> = receiver;
        loop {
            let chunks: Vec<Chunk> = receiver.iter().take(window).collect::<Result<_, _>>()?;
            if chunks.is_empty() {
                return Ok(true);
            }
            let results: Vec<Result<R, DataError>> = chunks.par_iter().map(&work).collect();
            for (chunk, result) in chunks.iter().zip(results) {
                if watch.is_stopped() {
                    return Ok(false);
                }
                let next_document = chunk.first + chunk.documents.len() as u64;
                let end = ChunkEnd { next_document, ends_part: chunk.ends_part, ends_text: chunk.ends_text };
                take(end, result?)?;
            }
            watch.reached(read.load(Ordering::Relaxed));
        }
    })
}

fn read_chunks(
    documents: Documents,
    limits: ChunkLimits,
    sender: &SyncSender<Result<Chunk, DataError>>,
) -> Result<(), DataError> {
    let mut chunk = Chunk { first: limits.from, documents: Vec::new(), ends_part: false, ends_text: false };
    let (mut chunk_bytes, mut part_bytes) = (0, 0);
    for (number, document) in documents.enumerate() {
        let document = document?;
        if (number as u64) < limits.from {
            continue;
        }
        // Sent when the next document is there, so that the last chunk can be known as the last.
        if chunk_bytes >= CHUNK_BYTES || part_bytes >= limits.part_bytes {
            chunk.ends_part = part_bytes >= limits.part_bytes;
            if chunk.ends_part {
                part_bytes = 0;
            }
            chunk_bytes = 0;
            let next = Chunk { first: number as u64, documents: Vec::new(), ends_part: false, ends_text: false };
            if sender.send(Ok(std::mem::replace(&mut chunk, next))).is_err() {
                return Ok(());
            }
        }
        chunk_bytes += document.text.len();
        part_bytes += document.text.len();
        chunk.documents.push(document);
    }
    chunk.ends_part = true;
    chunk.ends_text = true;
    let _ = sender.send(Ok(chunk));
    Ok(())
}
