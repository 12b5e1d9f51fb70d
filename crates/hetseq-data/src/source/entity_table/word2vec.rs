//! Reads vectors in the text format of word2vec and fastText: a name and its numbers per line.
//!
//! The rules:
//! - The first line is a header if it is two integers: the number of entities and of values. Both
//!   are checked.
//! - The name ends at the first tab, or at the first space if there is no tab. Spaces and tabs
//!   separate the numbers.
//! - Blank lines are skipped. Lines end with LF or CRLF; a byte order mark at the start is dropped.

use std::path::Path;

use rayon::prelude::*;

use super::{EntityTable, NameList, bad_table};
use crate::error::DataError;
use crate::source::text::Lines;

const BYTE_ORDER_MARK: char = '\u{feff}';
const SEPARATORS: [char; 2] = [' ', '\t'];
/// Lines that are parsed in parallel.
const CHUNK_LINES: usize = 4096;

pub(super) fn read(path: &Path) -> Result<EntityTable, DataError> {
    let mut lines = NumberedLines { lines: Lines::open(path)?, waiting: None };
    let mut list = NameList::new(lines.lines.path());
    let header = match lines.next().transpose()? {
        Some((number, line)) => {
            let header = header(&line);
            lines.waiting = header.is_none().then_some((number, line));
            header
        }
        None => None,
    };
    let mut vectors = Vec::new();
    let mut dim = header.map(|(_, dim)| dim);
    loop {
        let chunk: Vec<(usize, String)> = lines.by_ref().take(CHUNK_LINES).collect::<Result<_, _>>()?;
        if chunk.is_empty() {
            break;
        }
        let parsed: Vec<Result<(&str, Vec<f32>), String>> = chunk.par_iter().map(|(_, line)| parse(line)).collect();
        for ((line, _), parsed) in chunk.iter().zip(parsed) {
            let at = list.names.len();
            let (name, numbers) = match parsed {
                Ok((name, numbers)) => (name.to_owned(), numbers),
                Err(problem) => {
                    list.push(String::new(), *line);
                    return Err(list.bad(at, problem));
                }
            };
            list.push(name, *line);
            let expected = *dim.get_or_insert(numbers.len());
            if numbers.len() != expected {
                let (name, found) = (&list.names[at], numbers.len());
                let problem = format!("`{name}` has {found} numbers, but {expected} are expected; correct the line");
                return Err(list.bad(at, problem));
            }
            vectors.extend(numbers);
        }
    }
    if let Some((expected, _)) = header.filter(|(expected, _)| *expected != list.names.len()) {
        let found = list.names.len();
        let problem = format!("the header says {expected} entities, but there are {found}; copy the file again");
        return Err(bad_table(&list.path, &problem));
    }
    EntityTable::new(list, dim.unwrap_or(0), vectors)
}

/// The number of entities and of values.
fn header(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split(SEPARATORS).filter(|field| !field.is_empty());
    let (entities, dim) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    fields.next().is_none().then_some((entities, dim))
}

fn parse(line: &str) -> Result<(&str, Vec<f32>), String> {
    let end = line.find('\t').or_else(|| line.find(' ')).unwrap_or(line.len());
    let (name, numbers) = line.split_at(end);
    let name = name.trim_matches(' ');
    if name.is_empty() {
        return Err("the name is empty; write a name and its numbers".to_owned());
    }
    let number = |text: &str| {
        let number = text.parse().ok().filter(|number: &f32| number.is_finite());
        number.ok_or_else(|| format!("`{text}` of `{name}` is not a finite number; correct it"))
    };
    let numbers: Vec<f32> =
        numbers.split(SEPARATORS).filter(|text| !text.is_empty()).map(number).collect::<Result<_, _>>()?;
    if numbers.is_empty() {
        return Err(format!("there are no numbers after `{name}`; write its vector"));
    }
    Ok((name, numbers))
}

/// Lines that are not blank, with their numbers.
struct NumberedLines {
    lines: Lines,
    /// The line that comes first.
    waiting: Option<(usize, String)>,
}

impl Iterator for NumberedLines {
    type Item = Result<(usize, String), DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(line) = self.waiting.take() {
            return Some(Ok(line));
        }
        loop {
            let mut line = match self.lines.next()? {
                Ok(line) => line,
                Err(error) => return Some(Err(error)),
            };
            let number = self.lines.lines_read();
            if number == 1 && line.starts_with(BYTE_ORDER_MARK) {
                line.remove(0);
            }
            if !line.trim_matches(SEPARATORS).is_empty() {
                return Some(Ok((number, line)));
            }
        }
    }
}
