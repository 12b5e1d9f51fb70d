//! `metrics.jsonl`: one compact JSON object a line, appended and flushed at once, so that what was seen survives a kill.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use fs_err::{File, OpenOptions};

use crate::{Event, Sink};

pub struct Journal {
    file: File,
}

impl Journal {
    /// Open `path` for a run that stands at update `at`. Lines about later updates, left by a process that was killed
    /// after its last checkpoint, are taken out: those updates will be done again. A torn last line goes too.
    pub fn open(path: &Path, at: u64) -> std::io::Result<Self> {
        if path.exists() {
            let mut kept = Vec::new();
            let mut dropped = false;
            for line in BufReader::new(File::open(path)?).split(b'\n') {
                let line = line?;
                match serde_json::from_slice::<Event>(&line) {
                    Ok(event) if event.update().is_none_or(|update| update <= at) => {
                        kept.extend_from_slice(&line);
                        kept.push(b'\n');
                    }
                    _ => dropped = true,
                }
            }
            if dropped {
                let fresh = path.with_extension("jsonl.tmp");
                fs_err::write(&fresh, kept)?;
                fs_err::rename(&fresh, path)?;
            }
        }
        Ok(Journal { file: OpenOptions::new().create(true).append(true).open(path)? })
    }
}

impl Sink for Journal {
    fn event(&mut self, event: &Event) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

impl Event {
    /// The update that this event speaks of, if it is bound to one.
    fn update(&self) -> Option<u64> {
        match self {
            Event::Update { update, .. }
            | Event::Valid { update, .. }
            | Event::Checkpoint { update, .. }
            | Event::Workers { update, .. }
            | Event::End { update, .. } => Some(*update),
            Event::Start { .. } | Event::Warning { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn update(update: u64) -> Event {
        Event::Update {
            update,
            epoch: 0,
            loss: 1.5,
            terms: BTreeMap::from([("loss".to_owned(), 1.5)]),
            samples: 8,
            grad_norm: 0.5,
            lr: 0.1,
            seconds: 0.01,
            checksum: None,
        }
    }

    #[test]
    fn resuming_takes_out_what_will_be_done_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut journal = Journal::open(&path, 0).unwrap();
        for k in 1..=5 {
            journal.event(&update(k)).unwrap();
        }
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"event\":\"upd").unwrap();
        Journal::open(&path, 3).unwrap().event(&update(4)).unwrap();
        let text = fs_err::read_to_string(&path).unwrap();
        let updates: Vec<u64> =
            text.lines().map(|line| serde_json::from_str::<Event>(line).unwrap().update().unwrap()).collect();
        assert_eq!(updates, [1, 2, 3, 4]);
    }

    #[test]
    fn the_names_that_scripts_rely_on() {
        let line = serde_json::to_string(&update(1)).unwrap();
        assert_eq!(
            line,
            r#"{"event":"update","update":1,"epoch":0,"loss":1.5,"terms":{"loss":1.5},"samples":8,"grad_norm":0.5,"lr":0.1,"seconds":0.01}"#
        );
        let valid = Event::Valid {
            update: 3,
            epoch: 0,
            loss: 0.5,
            terms: BTreeMap::new(),
            samples: 10,
            seconds: 0.1,
            metrics: BTreeMap::from([("accuracy".to_owned(), 0.97)]),
        };
        assert!(serde_json::to_string(&valid).unwrap().contains(r#""accuracy":0.97"#));
    }
}
