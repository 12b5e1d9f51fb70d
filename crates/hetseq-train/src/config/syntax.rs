//! Explains why a text is not TOML: what is wrong with the line, and what to write instead. Pure. Called
//! by `file` when the parser has refused a config; knows the mistakes of people who write TOML for the
//! first time.

use toml::Table;

/// The message about line `line` (from 1) of a config, which the parser refused because of `reason`.
pub(super) fn explain(text: &str, line: usize, reason: &str) -> String {
    if text.trim_start().starts_with(['{', '"']) {
        return "this looks like JSON, but a config is TOML: sections such as [run], and below them lines such as \
                task = \"images\""
            .to_owned();
    }
    let source = text.lines().nth(line - 1).unwrap_or_default().trim();
    let reason = reason.trim_end().replace('\n', ", ");
    if reason == "duplicate key" {
        return duplicate(source);
    }
    // The parser finds a list without end in the next line.
    let is_list = reason.contains("between array elements") || reason.contains("unclosed array");
    let reason = if is_list { reason + ". Or is a ] missing in a line above?" } else { reason };
    let found = not_toml(source).or_else(|| value(source));
    found.unwrap_or_else(|| if source.is_empty() { reason } else { format!("`{source}`: {reason}") })
}

fn duplicate(source: &str) -> String {
    let key = source.split('=').next().unwrap_or_default().trim();
    if key.starts_with('[') {
        return format!("{key} is here a second time: put all keys of a section under one {key}");
    }
    format!("`{key}` is set a second time in its section: remove one of the two lines")
}

/// Lines of other languages: `run:`, `task: images`.
fn not_toml(source: &str) -> Option<String> {
    let (key, value) = source.split_once(':').filter(|(key, _)| !key.is_empty() && !key.contains(['=', '"', '[']))?;
    let (key, value) = (key.trim(), value.trim());
    Some(if value.is_empty() {
        format!("`{source}`: a section is written in brackets: [{key}]")
    } else {
        format!("`{source}`: write = between a key and its value, and texts in quotes: {key} = {}", corrected(value))
    })
}

/// A line `key = value` whose value is not TOML.
fn value(source: &str) -> Option<String> {
    let (key, value) = source.split_once('=')?;
    let (key, value) = (key.trim(), value.trim());
    let plain = value.split('#').next().unwrap_or_default().trim();
    let is_valid = |value: &str| format!("x = {value}").parse::<Table>().is_ok();
    let advice = |what: &str, better: &str| {
        is_valid(better).then(|| format!("`{key} = {plain}`: {what}. Write: {key} = {better}"))
    };
    if is_valid(plain) {
        return None;
    }
    let straight = value.replace(['“', '”', '„', '«', '»'], "\"").replace(['‘', '’'], "'");
    if straight != value {
        return advice("these quotes are typographic ones", &straight);
    }
    let is_text = plain.starts_with('"');
    if is_text && plain.contains('\\') {
        return advice("in double quotes, \\ begins a special character", &plain.replace('"', "'"));
    }
    if plain.starts_with(['"', '\'']) {
        let quote = &plain[..1];
        return advice("the closing quote is missing", &format!("{plain}{quote}"));
    }
    match better_word(plain) {
        Some(("", _)) => Some(format!("`{key} = {plain}`: TOML has no such value. Leave the line out for the default")),
        Some((better, what)) => advice(what, better),
        None => better_number(plain)
            .and_then(|better| advice("this is not how TOML writes a number", &better))
            .or_else(|| is_word(plain).then(|| advice("a text needs quotes", &format!("\"{plain}\"")))?),
    }
}

/// What Python and others write for truth values; no word if there is none in TOML.
fn better_word(value: &str) -> Option<(&'static str, &'static str)> {
    match value {
        "True" | "TRUE" | "yes" | "on" => Some(("true", "the values are true and false")),
        "False" | "FALSE" | "no" | "off" => Some(("false", "the values are true and false")),
        "None" | "null" | "nil" | "~" | "" => Some(("", "")),
        _ => None,
    }
}

/// `.5`, `5.`, `1.e-3` and `0,001` as TOML writes them.
fn better_number(value: &str) -> Option<String> {
    let value = if value.matches(',').count() == 1 { value.replace(',', ".") } else { value.to_owned() };
    let number: f64 = value.parse().ok().filter(|number: &f64| number.is_finite())?;
    value.chars().all(|letter| letter.is_ascii_digit() || ".eE+-".contains(letter)).then(|| format!("{number:?}"))
}

fn is_word(value: &str) -> bool {
    let Some(first) = value.chars().next() else { return false };
    let is_word = first.is_alphabetic() || "~/._".contains(first) || (first.is_numeric() && value.contains(' '));
    is_word && !value.contains(['"', '\'', '[', ']', '{', '}', '='])
}

/// A value of another language as TOML would have it.
fn corrected(value: &str) -> String {
    let is_valid = format!("x = {value}").parse::<Table>().is_ok();
    match (is_valid, better_word(value)) {
        (true, _) => value.to_owned(),
        (false, Some((better, _))) if !better.is_empty() => better.to_owned(),
        _ => format!("\"{}\"", value.trim_matches(['"', '\''])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message for a config with this line.
    fn message(line: &str) -> String {
        let text = format!("[run]\nseed = 1\n{line}\n");
        let error = text.parse::<Table>().unwrap_err();
        let number = 1 + text[..error.span().unwrap().start].matches('\n').count();
        explain(&text, number, error.message())
    }

    #[test]
    fn the_mistakes_of_beginners_are_explained() {
        for (line, expected) in [
            ("task = images", "`task = images`: a text needs quotes. Write: task = \"images\""),
            ("data = ~/x # here", "`data = ~/x`: a text needs quotes. Write: data = \"~/x\""),
            ("every = 10 updates", "`every = 10 updates`: a text needs quotes. Write: every = \"10 updates\""),
            ("task = “images”", "`task = “images”`: these quotes are typographic ones. Write: task = \"images\""),
            ("dir = \"runs/x", "`dir = \"runs/x`: the closing quote is missing. Write: dir = \"runs/x\""),
            (
                "dir = \"C:\\mnist\"",
                "`dir = \"C:\\mnist\"`: in double quotes, \\ begins a special character. Write: dir = 'C:\\mnist'",
            ),
            ("encrypt = True", "`encrypt = True`: the values are true and false. Write: encrypt = true"),
            ("init = None", "`init = None`: TOML has no such value. Leave the line out for the default"),
            ("init =", "`init = `: TOML has no such value. Leave the line out for the default"),
            ("lr = .5", "`lr = .5`: this is not how TOML writes a number. Write: lr = 0.5"),
            ("lr = 1.e-3", "`lr = 1.e-3`: this is not how TOML writes a number. Write: lr = 0.001"),
            ("lr = 0,001", "`lr = 0,001`: this is not how TOML writes a number. Write: lr = 0.001"),
            ("seed = 2", "`seed` is set a second time in its section: remove one of the two lines"),
            ("[run]", "[run] is here a second time: put all keys of a section under one [run]"),
            ("optim:", "`optim:`: a section is written in brackets: [optim]"),
            (
                "task: images",
                "`task: images`: write = between a key and its value, and texts in quotes: task = \"images\"",
            ),
            ("amp: True", "`amp: True`: write = between a key and its value, and texts in quotes: amp = true"),
        ] {
            assert_eq!(message(line), expected);
        }
        assert!(explain("{\"run\": 1}", 1, "expected key").starts_with("this looks like JSON"));
    }

    #[test]
    fn other_errors_quote_the_line() {
        let message_of_list = message("betas = [0.9, 0.98\nlr = 1.0");
        assert!(message_of_list.contains("Or is a ] missing in a line above?"), "{message_of_list}");
        for line in ["x = 1x", "schedule = { kind = \"cosine\"", "just words"] {
            let message = message(line);
            assert!(message.starts_with('`') && !message.contains("needs quotes"), "{message}");
        }
    }

    /// No text makes it panic, and its advice is TOML.
    #[test]
    fn advice_is_toml() {
        for value in ["\"", "'", "\\", "\"\\\"", "“", "=", "1,2,3", "é", "\"é", "'\"", "# x", "~", "--1", "0x", "1_"]
        {
            for text in [format!("x = {value}"), format!("x: {value}"), value.to_owned()] {
                let Err(error) = text.parse::<Table>() else { continue };
                let message = explain(&text, 1, error.message());
                if let Some((_, advice)) = message.split_once("Write: ") {
                    assert!(advice.parse::<Table>().is_ok(), "{text}: {message}");
                }
            }
        }
    }
}
