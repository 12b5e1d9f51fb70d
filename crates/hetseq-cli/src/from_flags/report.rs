//! What is written to the file and what is told about it. Text only.

use super::translate::{Entry, Translation};

/// The new `run.toml`, each key with where it comes from.
pub(super) fn toml(translation: &Translation, line: &str) -> String {
    let mut text = String::from("# Written by `hetseq train --from-flags` from:\n");
    for part in folded(&plain(line)) {
        text += &format!("#   {part}\n");
    }
    for (section, entries) in translation.sections() {
        text += &format!("\n[{section}]\n");
        for Entry { key, value, why, .. } in entries {
            text += &format!("{:<42}  # {}\n", format!("{key} = {value}"), plain(why));
        }
    }
    text
}

/// On one line, and with nothing that a comment or a terminal would take for more than text.
fn plain(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// At most so many characters a line, cut before flags.
fn folded(line: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let flat: String = line.split_whitespace().filter(|word| *word != "\\").collect::<Vec<_>>().join(" ");
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

/// What a person wants to know, in lines.
pub(super) fn lines(translation: &Translation, program: &str, config: &str, is_written: bool) -> Vec<String> {
    let mut lines = vec![format!("Read as a command line of {program}."), String::new(), "taken over".to_owned()];
    for (section, entries) in translation.sections() {
        for Entry { key, value, why, .. } in entries {
            lines.push(plain(&format!("  {:<48}  {why}", format!("{section}.{key} = {value}"))));
        }
    }
    pairs(&mut lines, "for you to look at", &translation.doubts);
    pairs(&mut lines, "not needed here", &translation.unneeded);
    if !translation.unknown.is_empty() {
        lines.extend([String::new(), "unknown, and left out".to_owned()]);
        lines.extend(translation.unknown.iter().map(|flag| plain(&format!("  {flag}"))));
    }
    lines.push(String::new());
    let written = if is_written { format!("{config} is written") } else { format!("Put it into {config}") };
    lines.push(format!("{written}. Keys are explained in GUIDE.md, differences in docs/migrating.md."));
    lines.extend(translation.launch.remarks.iter().cloned());
    let commands = translation.launch.commands(config);
    let heading = match commands.len() {
        1 if translation.launch.meets_in_directory() => "Start, the same on each machine:",
        1 => "Start:",
        _ => "Start, one on each machine:",
    };
    lines.push(heading.to_owned());
    lines.extend(commands.into_iter().map(|command| format!("  {command}")));
    lines
}

fn pairs(lines: &mut Vec<String>, title: &str, pairs: &[(String, String)]) {
    if pairs.is_empty() {
        return;
    }
    lines.extend([String::new(), title.to_owned()]);
    lines.extend(pairs.iter().map(|(what, why)| plain(&format!("  {what:<36}  {why}"))));
}
