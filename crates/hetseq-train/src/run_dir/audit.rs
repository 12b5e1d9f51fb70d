//! `debug.audit`: which samples each rank has computed in each update, in `audit-rank-R.jsonl`. Rank 0
//! writes all files, from the headers of the ranks, so they contain only updates that are done. All
//! ranks remember the last lines: if rank 0 is lost, another rank writes what it had not written.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_metrics::events::sink::JsonLines;
use serde::{Deserialize, Serialize};

/// More than rank 0 can be behind.
const RECENT_LINES: usize = 8;

/// One update.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct AuditLine {
    pub(crate) update: u64,
    pub(crate) epoch: u64,
    /// The numbers of the ranks at the start, and the samples of each.
    pub(crate) ranks: Vec<usize>,
    pub(crate) computed: Vec<Vec<u32>>,
}

/// Opens a file for a run that has done so many updates.
type Open = fn(&Path, u64) -> io::Result<JsonLines>;

pub(crate) struct Audit {
    dir: PathBuf,
    recent: VecDeque<AuditLine>,
    /// On rank 0.
    writer: Option<AuditWriter>,
}

struct AuditWriter {
    /// The updates done before this rank began to write.
    at: u64,
    open: Open,
    files: BTreeMap<usize, JsonLines>,
}

/// A line of a file.
#[derive(Serialize, Deserialize)]
struct RankLine {
    update: u64,
    epoch: u64,
    samples: Vec<u32>,
}

impl Audit {
    pub(crate) fn new(dir: &Path) -> Self {
        Audit { dir: dir.to_owned(), recent: VecDeque::new(), writer: None }
    }

    /// Writes from now on, to files that `open` opens.
    pub(crate) fn writing(self, at: u64, open: Open) -> Self {
        Audit { writer: Some(AuditWriter { at, open, files: BTreeMap::new() }), ..self }
    }

    pub(crate) fn record(&mut self, line: AuditLine) -> io::Result<()> {
        if self.writer.is_some() {
            for (&rank, samples) in line.ranks.iter().zip(&line.computed) {
                self.write(rank, RankLine { update: line.update, epoch: line.epoch, samples: samples.clone() })?;
            }
        }
        if self.recent.len() == RECENT_LINES {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
        Ok(())
    }

    /// The lines about updates after `update`.
    pub(crate) fn recorded_after(&self, update: u64) -> Vec<AuditLine> {
        self.recent.iter().filter(|line| line.update > update).cloned().collect()
    }

    /// Writes the lines that the lost rank 0 has not written.
    pub(crate) fn write_missing(&mut self) -> io::Result<()> {
        for line in self.recent.clone() {
            for (&rank, samples) in line.ranks.iter().zip(&line.computed) {
                let text = fs::read_to_string(self.path(rank)).unwrap_or_default();
                let mut written = text.lines().filter_map(|line| serde_json::from_str::<RankLine>(line).ok());
                if !written.any(|written| written.update == line.update) {
                    self.write(rank, RankLine { update: line.update, epoch: line.epoch, samples: samples.clone() })?;
                }
            }
        }
        Ok(())
    }

    fn path(&self, rank: usize) -> PathBuf {
        self.dir.join(format!("audit-rank-{rank}.jsonl"))
    }

    fn write(&mut self, rank: usize, line: RankLine) -> io::Result<()> {
        let path = self.path(rank);
        let Some(AuditWriter { at, open, files }) = &mut self.writer else { return Ok(()) };
        let file = match files.entry(rank) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(entry) => entry.insert(open(&path, *at)?),
        };
        file.write(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_rank_0_writes_what_the_old_one_had_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let line = |update| AuditLine { update, epoch: 1, ranks: vec![0, 2], computed: vec![vec![1, 2], vec![3]] };
        let mut old = Audit::new(dir.path()).writing(0, JsonLines::open);
        let mut new = Audit::new(dir.path());
        for update in 1..=3 {
            if update < 3 {
                old.record(line(update)).unwrap();
            }
            new.record(line(update)).unwrap();
        }
        let mut new = new.writing(3, JsonLines::take_over);
        new.write_missing().unwrap();
        new.record(line(4)).unwrap();
        // The old one may wake up.
        old.record(line(3)).unwrap();
        for rank in [0, 2] {
            let text = fs::read_to_string(new.path(rank)).unwrap();
            let updates: Vec<u64> =
                text.lines().map(|line| serde_json::from_str::<RankLine>(line).unwrap().update).collect();
            assert_eq!(updates, [1, 2, 3, 4]);
        }
        assert_eq!(new.recorded_after(2).len(), 2);
    }
}
