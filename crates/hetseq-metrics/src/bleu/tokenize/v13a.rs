//! The tokeniser `13a`: signs apart, full stops and commas apart unless they are within a number.

use super::{Around, part, part_pairs};

pub(super) fn apply(line: &str) -> String {
    let line = plain(line);
    let is_point = |c: char| matches!(c, '.' | ',');
    let is_digit = |c: char| c.is_ascii_digit();
    // Spaces at both ends: also the first and the last sign have neighbours.
    let line = part(&format!(" {line} "), is_sign);
    let line = part_pairs(&line, Around::Second, |before, sign| !is_digit(before) && is_point(sign));
    let line = part_pairs(&line, Around::First, |sign, after| is_point(sign) && !is_digit(after));
    part_pairs(&line, Around::Second, |before, sign| is_digit(before) && sign == '-')
}

/// Without line breaks, and with the signs that four entities stand for, in this order: what one leaves may be another.
fn plain(line: &str) -> String {
    let line = line.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    if !line.contains('&') {
        return line;
    }
    line.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
}

/// ASCII's signs but for the full stop, comma, hyphen and apostrophe.
fn is_sign(c: char) -> bool {
    c.is_ascii_punctuation() && !matches!(c, '.' | ',' | '-' | '\'')
}
