//! Formats the new `run.toml` and the summary for the user. Pure.

use super::convert::{ConfigEntry, Converted};

/// The new `run.toml`, with the source of each key as a comment.
pub(super) fn toml(converted: &Converted, command: &str) -> String {
    let mut text = String::from("# Written by `hetseq migrate` from:\n");
    for part in folded(&plain(command)) {
        text += &format!("#   {part}\n");
    }
    for (section, entries) in converted.sections() {
        text += &format!("\n[{section}]\n");
        for ConfigEntry { key, value, reason, .. } in entries {
            text += &format!("{:<42}  # {}\n", format!("{key} = {value}"), plain(reason));
        }
    }
    text
}

/// The text without control characters, so that it cannot end a comment or control a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// The command in lines of about 110 characters, split before flags.
fn folded(command: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let flat: String = command.split_whitespace().filter(|word| *word != "\\").collect::<Vec<_>>().join(" ");
    for (index, part) in flat.split(" --").enumerate() {
        let part = if index == 0 { part.to_owned() } else { format!("--{part}") };
        match lines.last_mut() {
            Some(last) if !last.is_empty() && last.len() + part.len() < 110 => *last += &format!(" {part}"),
            Some(last) if last.is_empty() => *last = part,
            _ => lines.push(part),
        }
    }
    lines
}

/// The lines of the summary.
pub(super) fn lines(converted: &Converted, program: &str, config: &str, is_written: bool) -> Vec<String> {
    let mut lines = vec![format!("Converted a command line of {program}."), String::new(), "converted:".to_owned()];
    for (section, entries) in converted.sections() {
        for ConfigEntry { key, value, reason, .. } in entries {
            lines.push(plain(&format!("  {:<48}  {reason}", format!("{section}.{key} = {value}"))));
        }
    }
    add_pairs(&mut lines, "needs your attention:", &converted.warnings);
    add_pairs(&mut lines, "not needed:", &converted.not_needed);
    if !converted.unknown.is_empty() {
        lines.extend([String::new(), "unknown flags, ignored:".to_owned()]);
        lines.extend(converted.unknown.iter().map(|flag| plain(&format!("  {flag}"))));
    }
    lines.push(String::new());
    let written = if is_written { format!("Wrote {config}") } else { format!("Save it as {config}") };
    lines.push(format!("{written}. docs/configuration.md explains the keys, docs/migrating.md the differences."));
    lines.extend(converted.launch.notes.iter().cloned());
    let commands = converted.launch.commands(config);
    let heading = match commands.len() {
        1 if converted.launch.uses_directory() => "Start the run with the same command on each machine:",
        1 => "Start the run:",
        _ => "Start the run with one command on each machine:",
    };
    lines.push(heading.to_owned());
    lines.extend(commands.into_iter().map(|command| format!("  {command}")));
    lines
}

fn add_pairs(lines: &mut Vec<String>, title: &str, pairs: &[(String, String)]) {
    if pairs.is_empty() {
        return;
    }
    lines.extend([String::new(), title.to_owned()]);
    lines.extend(pairs.iter().map(|(what, text)| plain(&format!("  {what:<36}  {text}"))));
}
