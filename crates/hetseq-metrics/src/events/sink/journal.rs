//! Files such as `metrics.jsonl`: one compact JSON object per line, appended at once, so that
//! events survive a killed process.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fs_err::{File, OpenOptions};
use serde::{Deserialize, Serialize};

use crate::format::utc_millis;
use crate::{Event, Sink};

/// A file with one JSON object per line. Some objects have a field `update`.
pub struct JsonLines {
    path: PathBuf,
    file: File,
    /// The last line is incomplete because the disk was full, and could not be removed.
    torn: bool,
}

impl JsonLines {
    /// Opens `path` for a run that continues after update `at`. Removes lines about later updates,
    /// left by a process that was killed after its last checkpoint: those updates will be done
    /// again. Also removes an incomplete last line. Everything else in the file stays.
    pub fn open(path: &Path, at: u64) -> std::io::Result<Self> {
        if path.exists() {
            let (text, remaining) = lines_until(path, at)?;
            if remaining.len() < text.len() {
                hetseq_fs::replace(path, &remaining)?;
            }
        }
        Ok(JsonLines { path: path.to_owned(), file: append(path)?, torn: false })
    }

    /// Like [`JsonLines::open`], but another process may still have the file open: it loses it, so
    /// that nothing it writes from now on gets into the file.
    pub fn take_over(path: &Path, at: u64) -> std::io::Result<Self> {
        let remaining = if path.exists() { lines_until(path, at)?.1 } else { Vec::new() };
        hetseq_fs::replace(path, &remaining)?;
        Ok(JsonLines { path: path.to_owned(), file: append(path)?, torn: false })
    }

    /// Writes one line, completely or not at all. After an error, later lines can still be written.
    pub fn write(&mut self, object: &impl Serialize) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(object)?;
        line.push(b'\n');
        if self.file.metadata()?.nlink() == 0 {
            if self.path.exists() {
                // Another process has taken over the file.
                return Ok(());
            }
            // The file was deleted, so further writes to it would be lost.
            fs_err::create_dir_all(self.path.parent().unwrap_or(Path::new(".")))?;
            (self.file, self.torn) = (append(&self.path)?, false);
        }
        if self.torn {
            line.insert(0, b'\n');
        }
        let end = self.file.metadata()?.len();
        let written = self.file.write_all(&line);
        match &written {
            Ok(()) => self.torn = false,
            // Also if nothing of this line was written, an earlier one may be incomplete.
            Err(_) => {
                self.torn |=
                    self.file.set_len(end).is_err() && self.file.metadata().map_or(true, |now| now.len() > end);
            }
        }
        written
    }

    /// Flushes the file to the disk.
    pub fn sync(&self) -> std::io::Result<()> {
        self.file.sync_data()
    }
}

/// The content of a file, and the complete lines of it that are not about updates after `at`.
fn lines_until(path: &Path, at: u64) -> std::io::Result<(Vec<u8>, Vec<u8>)> {
    let text = fs_err::read(path)?;
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    let remaining = lines.filter(|line| line.ends_with(b"\n") && !is_later(line, at)).flatten().copied().collect();
    Ok((text, remaining))
}

fn append(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn is_later(line: &[u8], at: u64) -> bool {
    #[derive(Deserialize)]
    struct Numbered {
        update: u64,
    }
    serde_json::from_slice::<Numbered>(line).is_ok_and(|line| line.update > at)
}

fn is_validation(line: &[u8], after: u64) -> bool {
    matches!(serde_json::from_slice(line), Ok(Event::Valid { update, .. }) if update == after)
}

/// A line of the journal. The time is for people: a resume does not depend on it.
#[derive(Serialize)]
struct TimedEvent<'a> {
    #[serde(flatten)]
    event: &'a Event,
    time: String,
}

/// The sink that writes every event to a file.
pub struct Journal(JsonLines);

impl Journal {
    pub fn open(path: &Path, at: u64) -> std::io::Result<Self> {
        JsonLines::open(path, at).map(Journal)
    }

    /// See [`JsonLines::take_over`]. If `repeats_validation`, the validation after update `at` is
    /// removed, too.
    pub fn take_over(path: &Path, at: u64, repeats_validation: bool) -> std::io::Result<Self> {
        let lines = JsonLines::take_over(path, at)?;
        if repeats_validation {
            let text = fs_err::read(path)?;
            let remaining = text.split_inclusive(|&byte| byte == b'\n').filter(|line| !is_validation(line, at));
            hetseq_fs::replace(path, &remaining.flatten().copied().collect::<Vec<u8>>())?;
            return JsonLines::open(path, at).map(Journal);
        }
        Ok(Journal(lines))
    }
}

impl Sink for Journal {
    fn event(&mut self, event: &Event, time: SystemTime) -> std::io::Result<()> {
        self.0.write(&TimedEvent { event, time: utc_millis(time) })
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.0.sync()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::UNIX_EPOCH;

    use super::*;

    /// Updates are written this many seconds after each other.
    fn time(update: u64) -> SystemTime {
        UNIX_EPOCH + std::time::Duration::from_millis(1042 * update)
    }

    fn update(update: u64) -> Event {
        Event::Update {
            update,
            epoch: 0,
            loss: 1.5,
            terms: BTreeMap::from([("loss".to_owned(), 1.5)]),
            samples: 8,
            tokens: None,
            grad_norm: 0.5,
            skipped: false,
            lr: 0.1,
            seconds: 0.01,
            data_wait_s: 0.001,
            predicted_s: None,
            checksum: None,
        }
    }

    #[test]
    fn resuming_removes_updates_that_will_be_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut journal = Journal::open(&path, 0).unwrap();
        for k in 1..=5 {
            journal.event(&update(k), time(k)).unwrap();
        }
        let foreign = "{\"event\":\"note\",\"text\":null}\n";
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(format!("{foreign}{{\"event\":\"upd").as_bytes()).unwrap();
        Journal::open(&path, 3).unwrap().event(&update(4), time(4)).unwrap();
        let line = |k| {
            let line = serde_json::to_string(&update(k)).unwrap();
            format!("{},\"time\":\"{}\"}}\n", line.trim_end_matches('}'), utc_millis(time(k)))
        };
        let expected = [line(1), line(2), line(3), foreign.to_owned(), line(4)].concat();
        assert_eq!(fs_err::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn a_line_that_did_not_fit_is_removed_and_a_deleted_file_is_created_again() {
        // Always full, and cannot be truncated.
        let mut full =
            JsonLines { path: "/dev/full".into(), file: append(Path::new("/dev/full")).unwrap(), torn: false };
        assert_eq!(full.write(&update(1)).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        assert!(!full.torn, "nothing was written");
        full.torn = true;
        assert!(full.write(&update(1)).is_err() && full.torn, "an earlier line is incomplete");

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/metrics.jsonl");
        fs_err::create_dir_all(dir.path().join("run")).unwrap();
        let mut lines = JsonLines::open(&path, 0).unwrap();
        lines.write(&update(1)).unwrap();
        fs_err::remove_dir_all(dir.path().join("run")).unwrap();
        lines.write(&update(2)).unwrap();
        lines.file.write_all(b"{\"event\":\"upd").unwrap();
        lines.torn = true;
        lines.write(&update(3)).unwrap();
        let text = fs_err::read_to_string(&path).unwrap();
        let whole: Vec<&str> = text.lines().filter(|line| serde_json::from_str::<Event>(line).is_ok()).collect();
        assert_eq!(whole.len(), 2, "{text}");
    }

    #[test]
    fn field_names_are_stable() {
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
        let timed = TimedEvent { event: &valid, time: utc_millis(time(3)) };
        let line = serde_json::to_string(&timed).unwrap();
        assert!(line.ends_with(r#""accuracy":0.97,"time":"1970-01-01T00:00:03.126Z"}"#), "{line}");
        // The time is no metric.
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), valid);
    }
}
