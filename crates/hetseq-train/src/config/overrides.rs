//! Parser of `--optimizer-overrides`: keys of `[optim]` with new values, as one argument. Two
//! syntaxes: `lr=1e-4,betas=[0.9,0.98]`, and fairseq's Python dictionary,
//! `{'lr': 1e-4, 'betas': (0.9, 0.98)}`.
//!
//! It does not check which keys exist; `file.rs` does, when it inserts them into the config.

use toml::Value;

/// Keys and values in the order given.
pub(crate) fn parse(text: &str) -> Result<Vec<(String, Value)>, String> {
    let failed = |reason: String| format!("--optimizer-overrides {text}: {reason}");
    let trimmed = text.trim();
    let inner = trimmed.strip_prefix('{').map_or(Some(trimmed), |rest| rest.strip_suffix('}'));
    let inner = inner.ok_or_else(|| failed("the closing `}` is missing".to_owned()))?;
    let mut found: Vec<(String, Value)> = Vec::new();
    for item in split(inner).map_err(failed)? {
        let (key, value) = item.split_once(['=', ':']).ok_or_else(|| {
            failed(format!("`{}` is not a setting: use lr=1e-4,weight_decay=0.1 or {{'lr': 1e-4}}", item.trim()))
        })?;
        let key = unquoted(key.trim()).to_owned();
        if key == "name" {
            let advice = "a resume keeps the optimizer of its checkpoint. To change it, set optim.name and add --reset optimizer";
            return Err(failed(advice.to_owned()));
        }
        if found.iter().any(|(earlier, _)| *earlier == key) {
            return Err(failed(format!("`{key}` is given twice")));
        }
        let value = read(value.trim()).map_err(|reason| failed(format!("{key}: {reason}")))?;
        found.push((key, value));
    }
    Ok(found)
}

/// Splits at commas that are not inside brackets or quotes. A trailing comma is allowed, as in
/// Python.
fn split(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut open, mut quote, mut start) = (Vec::new(), Vec::new(), None, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if quote == Some(letter) => quote = None,
            _ if quote.is_some() => {}
            '\'' | '"' => quote = Some(letter),
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' if open.pop() != Some(letter) => return Err(format!("`{letter}` closes nothing")),
            ',' if open.is_empty() => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if let Some(missing) = quote.or(open.pop()) {
        return Err(format!("a closing `{missing}` is missing"));
    }
    let rest = &text[start..];
    if !rest.trim().is_empty() {
        parts.push(rest);
    }
    Ok(parts)
}

/// A value, or a flat list of values.
fn read(text: &str) -> Result<Value, String> {
    match ['(', '['].into_iter().find_map(|open| text.strip_prefix(open)) {
        // `split` has already matched the brackets.
        Some(list) => {
            let items = split(&list[..list.len().saturating_sub(1)])?;
            items.into_iter().map(|item| read_one(item.trim())).collect::<Result<_, _>>().map(Value::Array)
        }
        None => read_one(text),
    }
}

fn read_one(text: &str) -> Result<Value, String> {
    let quoted = unquoted(text);
    if quoted.len() < text.len() {
        return Ok(Value::String(quoted.to_owned()));
    }
    // Python also allows `1_000`, `1.` and `.5`; Rust parses the latter two.
    let digits = text.replace('_', "");
    match text {
        "True" | "true" => Ok(Value::Boolean(true)),
        "False" | "false" => Ok(Value::Boolean(false)),
        _ => match (digits.parse::<i64>(), digits.parse::<f64>()) {
            (Ok(whole), _) => Ok(Value::Integer(whole)),
            (_, Ok(number)) => Ok(Value::Float(number)),
            _ => Err(format!("`{text}` is not a number, True or False, a quoted string, or a list of these")),
        },
    }
}

/// `text` without enclosing quotes, if there are any.
fn unquoted(text: &str) -> &str {
    let without = |quote| text.strip_prefix(quote).and_then(|rest: &str| rest.strip_suffix(quote));
    without('\'').or_else(|| without('"')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_syntaxes_mean_the_same() {
        let expected = |toml: &str| {
            let mut found: Vec<(String, Value)> = toml.parse::<toml::Table>().unwrap().into_iter().collect();
            found.sort_by(|a, b| a.0.cmp(&b.0));
            found
        };
        for (text, toml) in [
            ("lr=1e-4,weight_decay=0.1", "lr = 1e-4\nweight_decay = 0.1"),
            ("{'lr': 1e-4, \"weight_decay\": .1}", "lr = 1e-4\nweight_decay = 0.1"),
            ("{'betas': (0.9, 0.98), 'eps': 1e-08,}", "betas = [0.9, 0.98]\neps = 1e-8"),
            ("betas=[0.9,0.98], nesterov = true", "betas = [0.9, 0.98]\nnesterov = true"),
            ("{'nesterov': True, 'momentum': 1}", "nesterov = true\nmomentum = 1"),
            ("schedule='cosine'", "schedule = 'cosine'"),
            (" {} ", ""),
            ("", ""),
        ] {
            let mut found = parse(text).unwrap();
            found.sort_by(|a, b| a.0.cmp(&b.0));
            assert_eq!(found, expected(toml), "{text}");
        }
    }

    #[test]
    fn errors_name_the_wrong_part() {
        for (text, expected) in [
            ("{'lr': 1e-4", "closing `}`"),
            ("lr", "`lr` is not a setting"),
            ("lr=fast", "`fast` is not a number"),
            ("{'lr': None}", "`None` is not a number"),
            ("betas=(0.9, 0.98", "closing `)` is missing"),
            ("betas=[0.9)", "`)` closes nothing"),
            ("lr=[[1]]", "`[1]` is not a number"),
            ("lr=[1]2", "closes nothing"),
            ("lr='1", "closing `'` is missing"),
            ("lr=1,lr=2", "`lr` is given twice"),
            ("name=sgd", "--reset optimizer"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("--optimizer-overrides ") && error.contains(expected), "{text}: {error}");
        }
    }
}
