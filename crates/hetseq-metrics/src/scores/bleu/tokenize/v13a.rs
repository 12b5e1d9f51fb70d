//! The tokenizer `13a`: separates punctuation, but full stops and commas only outside numbers.

use super::{Around, space_out, space_out_pairs};

pub(super) fn apply(line: &str) -> String {
    let line = unescape(line);
    let is_point = |c: char| matches!(c, '.' | ',');
    let is_digit = |c: char| c.is_ascii_digit();
    // With spaces at both ends, the first and the last sign have neighbours too.
    let line = space_out(&format!(" {line} "), is_sign);
    let line = space_out_pairs(&line, Around::Second, |before, sign| !is_digit(before) && is_point(sign));
    let line = space_out_pairs(&line, Around::First, |sign, after| is_point(sign) && !is_digit(after));
    space_out_pairs(&line, Around::Second, |before, sign| is_digit(before) && sign == '-')
}

/// Removes line breaks and replaces four entities. The order matters: a replacement may form
/// another entity.
fn unescape(line: &str) -> String {
    let line = line.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    if !line.contains('&') {
        return line;
    }
    line.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
}

/// ASCII punctuation except full stop, comma, hyphen and apostrophe.
fn is_sign(c: char) -> bool {
    c.is_ascii_punctuation() && !matches!(c, '.' | ',' | '-' | '\'')
}
