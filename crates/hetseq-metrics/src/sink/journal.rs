//! `metrics.jsonl` and its kind: one compact JSON object a line, appended at once, so that what was seen survives a kill.

use std::io::Write;
use std::path::Path;

use fs_err::{File, OpenOptions};
use serde::{Deserialize, Serialize};

use crate::{Event, Sink};

/// A file of JSON objects, a line each, some of which have a field `update`.
pub struct JsonLines {
    file: File,
}

impl JsonLines {
    /// Open `path` for a run that stands at update `at`. Lines about later updates, left by a process that was killed
    /// after its last checkpoint, are taken out: those updates will be done again. A torn last line goes too. Whatever
    /// else is in the file stays.
    pub fn open(path: &Path, at: u64) -> std::io::Result<Self> {
        if path.exists() {
            let text = fs_err::read(path)?;
            let kept: Vec<u8> = text
                .split_inclusive(|&byte| byte == b'\n')
                .filter(|line| line.ends_with(b"\n") && !is_later(line, at))
                .flatten()
                .copied()
                .collect();
            if kept.len() < text.len() {
                let fresh = path.with_extension("jsonl.tmp");
                fs_err::write(&fresh, kept)?;
                fs_err::rename(&fresh, path)?;
            }
        }
        Ok(JsonLines { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    pub fn write(&mut self, object: &impl Serialize) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(object)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

fn is_later(line: &[u8], at: u64) -> bool {
    #[derive(Deserialize)]
    struct Line {
        update: u64,
    }
    serde_json::from_slice::<Line>(line).is_ok_and(|line| line.update > at)
}

/// The sink that keeps every event.
pub struct Journal(JsonLines);

impl Journal {
    pub fn open(path: &Path, at: u64) -> std::io::Result<Self> {
        JsonLines::open(path, at).map(Journal)
    }
}

impl Sink for Journal {
    fn event(&mut self, event: &Event) -> std::io::Result<()> {
        self.0.write(event)
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
            data_wait_s: 0.001,
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
        let foreign = "{\"event\":\"note\",\"text\":null}\n";
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(format!("{foreign}{{\"event\":\"upd").as_bytes()).unwrap();
        Journal::open(&path, 3).unwrap().event(&update(4)).unwrap();
        let line = |k| serde_json::to_string(&update(k)).unwrap() + "\n";
        let expected = [line(1), line(2), line(3), foreign.to_owned(), line(4)].concat();
        assert_eq!(fs_err::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn the_names_that_scripts_rely_on() {
        let line = serde_json::to_string(&update(1)).unwrap();
        assert_eq!(
            line,
            r#"{"event":"update","update":1,"epoch":0,"loss":1.5,"terms":{"loss":1.5},"samples":8,"grad_norm":0.5,"lr":0.1,"seconds":0.01,"data_wait_s":0.001}"#
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
