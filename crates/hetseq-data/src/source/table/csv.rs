//! Splits CSV into records, by RFC 4180. Called by [`table`](super).
//!
//! Strict where a mistake would lose rows without a message: a quote that is never closed, and text
//! after a closing quote. The `csv` crate accepts an unclosed quote, and the rest of the file
//! becomes one field (BurntSushi/rust-csv, issues 252 and 289), so this is our own. A quote inside
//! an unquoted field is text, as in `5" disk`.

/// One record: its fields, or why they cannot be read.
pub(super) type CsvRecord = Result<Vec<String>, CsvProblem>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CsvProblem {
    /// A field has more text after its closing quote.
    AfterQuote,
}

impl CsvProblem {
    pub(super) fn text(self) -> &'static str {
        match self {
            CsvProblem::AfterQuote => {
                "there is text after a closing quote; write a quote inside a quoted field twice, as in \"a \"\"b\"\"\""
            }
        }
    }
}

/// What an unclosed quote is called in messages.
pub(super) const UNCLOSED: &str =
    "a quote opens a field here and is never closed; close it, or write it inside quotes and twice";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    FieldStart,
    Unquoted,
    Quoted,
    /// Behind a quote inside a quoted field: it closed the field, or another quote follows.
    AfterQuote,
}

/// A record that may span several lines.
#[derive(Debug)]
pub(super) struct CsvParser {
    fields: Vec<String>,
    field: String,
    state: State,
}

impl CsvParser {
    pub(super) fn new() -> Self {
        CsvParser { fields: Vec::new(), field: String::new(), state: State::FieldStart }
    }

    /// Whether a record has begun that needs another line.
    pub(super) fn is_open(&self) -> bool {
        self.state == State::Quoted
    }

    /// Adds a line without its end. Returns the record if it ends here. A line end inside quotes is
    /// kept as LF.
    pub(super) fn add(&mut self, line: &str) -> Option<CsvRecord> {
        if self.is_open() {
            self.field.push('\n');
        }
        for c in line.chars() {
            self.state = match (self.state, c) {
                (State::FieldStart, '"') => State::Quoted,
                (State::Quoted, '"') => State::AfterQuote,
                (State::AfterQuote, '"') => {
                    self.field.push('"');
                    State::Quoted
                }
                (State::FieldStart | State::Unquoted | State::AfterQuote, ',') => {
                    self.fields.push(std::mem::take(&mut self.field));
                    State::FieldStart
                }
                (State::AfterQuote, _) => {
                    *self = CsvParser::new();
                    return Some(Err(CsvProblem::AfterQuote));
                }
                (State::FieldStart | State::Unquoted, _) => {
                    self.field.push(c);
                    State::Unquoted
                }
                (State::Quoted, _) => {
                    self.field.push(c);
                    State::Quoted
                }
            };
        }
        if self.is_open() {
            return None;
        }
        self.state = State::FieldStart;
        self.fields.push(std::mem::take(&mut self.field));
        Some(Ok(std::mem::take(&mut self.fields)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> (Vec<CsvRecord>, bool) {
        let mut parser = CsvParser::new();
        let records = text.split('\n').filter_map(|line| parser.add(line)).collect();
        (records, parser.is_open())
    }

    fn record(fields: &[&str]) -> CsvRecord {
        Ok(fields.iter().map(|field| (*field).to_owned()).collect())
    }

    #[test]
    fn quotes_are_read_by_the_rules() {
        for (text, expected) in [
            ("a,b", vec![record(&["a", "b"])]),
            ("", vec![record(&[""])]),
            (",", vec![record(&["", ""])]),
            ("\"a, b\",\"\"", vec![record(&["a, b", ""])]),
            ("\"say \"\"hi\"\"\",x", vec![record(&["say \"hi\"", "x"])]),
            ("\"two\nlines\",x\ny,z", vec![record(&["two\nlines", "x"]), record(&["y", "z"])]),
            ("5\" disk, x ", vec![record(&["5\" disk", " x "])]),
            ("\"a\"b,c\nd,e", vec![Err(CsvProblem::AfterQuote), record(&["d", "e"])]),
        ] {
            assert_eq!(parse(text), (expected, false), "{text:?}");
        }
        assert_eq!(parse("a,b\nc,\"d\ne"), (vec![record(&["a", "b"])], true));
    }

    proptest! {
        #[test]
        fn written_records_are_read_back(
            records in prop::collection::vec(prop::collection::vec("[a\",\n \u{e9}]{0,6}", 1..4), 1..5)
        ) {
            let quoted = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
            let line = |fields: &Vec<String>| fields.iter().map(quoted).collect::<Vec<_>>().join(",");
            let text = records.iter().map(line).collect::<Vec<_>>().join("\n");
            let expected: Vec<CsvRecord> = records.into_iter().map(Ok).collect();
            prop_assert_eq!(parse(&text), (expected, false));
        }
    }
}
