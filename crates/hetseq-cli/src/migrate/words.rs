//! Splits a pasted command line or script into commands and their words. `shlex` handles quotes and
//! comments, `shellexpand` variables. Operators and redirections are recognized if they are
//! separate words. Nothing is run; `$(...)` stays as it is.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// One command: the assignments in front of it, and its words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ShellCommand {
    pub(super) assigned: BTreeMap<String, String>,
    pub(super) words: Vec<String>,
}

/// The commands in order, and the variables that are set neither in the text nor in the
/// environment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) commands: Vec<ShellCommand>,
    pub(super) unset: Vec<String>,
}

/// Parses a whole text. `environment` gives variables that the text does not set itself.
pub(super) fn parse(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Script, String> {
    let text = text.replace("\\\r\n", " ").replace("\\\n", " ");
    let mut script = Script::default();
    let mut variables = BTreeMap::new();
    let mut pending = String::new();
    for line in text.lines() {
        pending.push_str(line);
        // A quoted argument may contain line ends: take lines until all quotes are closed.
        match shlex::split(&pending) {
            Some(words) => {
                add_commands(&words, &mut variables, environment, &mut script);
                pending.clear();
            }
            None => pending.push('\n'),
        }
    }
    if pending.trim().is_empty() {
        Ok(script)
    } else {
        Err("a quote is not closed; put the whole command line in the other kind of quotes".to_owned())
    }
}

/// Parses a command whose words the user's shell has already split and expanded.
pub(super) fn from_words(words: &[String]) -> Script {
    let mut script = Script::default();
    add_commands(words, &mut BTreeMap::new(), &|_| None, &mut script);
    script.unset.clear();
    script
}

fn add_commands(
    words: &[String],
    variables: &mut BTreeMap<String, String>,
    environment: &dyn Fn(&str) -> Option<String>,
    script: &mut Script,
) {
    let mut command = ShellCommand::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (word, mut ends) = match word.strip_suffix(';') {
            Some(rest) => (rest, true),
            None => (word.as_str(), ["|", "||", "&&", "&"].contains(&word.as_str())),
        };
        let is_operator = ends && ["", "|", "||", "&&", "&"].contains(&word);
        if !is_operator {
            match redirection(word) {
                Some(true) => ends |= words.next().is_some_and(|file| file.ends_with(';')),
                Some(false) => {}
                None => add_word(&expand(word, variables, environment, script), variables, &mut command),
            }
        }
        if ends {
            script.commands.push(std::mem::take(&mut command));
        }
    }
    script.commands.push(command);
    script.commands.retain(|command| !command.words.is_empty());
}

fn add_word(word: &str, variables: &mut BTreeMap<String, String>, command: &mut ShellCommand) {
    // Documentation prints these in front of a command.
    let is_prefix = ["$", "export", "env"].contains(&word);
    match assignment(word) {
        _ if command.words.is_empty() && is_prefix => {}
        Some((name, value)) if command.words.is_empty() => {
            variables.insert(name.to_owned(), value.to_owned());
            command.assigned.insert(name.to_owned(), value.to_owned());
        }
        _ => command.words.push(word.to_owned()),
    }
}

/// For a word that redirects a stream: whether the next word is the file. `None` for other words.
fn redirection(word: &str) -> Option<bool> {
    let target = word.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '&');
    let file = target.strip_prefix(['>', '<'])?.trim_start_matches(['>', '<', '&']);
    Some(file.is_empty())
}

/// Replaces `$NAME`, `${NAME}` and a leading `~`. Unset variables stay unchanged and are recorded.
fn expand(
    word: &str,
    variables: &BTreeMap<String, String>,
    environment: &dyn Fn(&str) -> Option<String>,
    script: &mut Script,
) -> String {
    let unset = RefCell::new(Vec::new());
    let lookup = |name: &str| {
        let value = variables.get(name).cloned().or_else(|| environment(name));
        if value.is_none() {
            unset.borrow_mut().push(format!("${{{name}}}"));
        }
        value
    };
    let expanded = shellexpand::env_with_context_no_errors(word, lookup).into_owned();
    for name in unset.into_inner() {
        if !script.unset.contains(&name) {
            script.unset.push(name);
        }
    }
    let (prefix, path) =
        assignment(&expanded).map_or(("", expanded.as_str()), |(name, value)| (&expanded[..name.len() + 1], value));
    match (path == "~" || path.starts_with("~/")).then(|| environment("HOME")).flatten() {
        Some(home) => format!("{prefix}{home}{}", &path[1..]),
        None => expanded,
    }
}

/// `NAME=value`.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let has_valid_start = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let is_name = name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    (has_valid_start && is_name).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Script {
        let environment = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
        parse(text, &environment).unwrap()
    }

    fn words(text: &str) -> Vec<Vec<String>> {
        script(text).commands.into_iter().map(|command| command.words).collect()
    }

    #[test]
    fn quotes_and_continued_lines() {
        let text = "python3 train.py  \\\n  --adam-betas '(0.9, 0.98)' --x \"a\\\"b c\" \\\r\n --y d\\ e --z ''";
        let expected = ["python3", "train.py", "--adam-betas", "(0.9, 0.98)", "--x", "a\"b c", "--y", "d e", "--z", ""];
        assert_eq!(words(text), [expected]);
        assert_eq!(words("a 'b\nc' d\ne"), [&["a", "b\nc", "d"][..], &["e"]]);
    }

    #[test]
    fn variables_come_from_the_text_then_from_the_environment() {
        let text = "$ DIST=~/hetseq\nexport AD=10.0.0.1:11111\npython3 ${DIST}/train.py --a tcp://$AD --c \"${NO}\"";
        let script = script(text);
        let expected = ["python3", "/home/me/hetseq/train.py", "--a", "tcp://10.0.0.1:11111", "--c", "${NO}"];
        assert_eq!(script.commands.last().unwrap().words, expected);
        assert_eq!(script.unset, ["${NO}"]);
    }

    #[test]
    fn pipes_redirections_and_comments_end_a_command() {
        let text = "#!/bin/bash\n#$-q gpu\nCUDA_VISIBLE_DEVICES=0,1 fairseq-train x --lr 1 2>&1 | tee log.txt\n\
                    echo done > out; ls & # no";
        let script = script(text);
        assert_eq!(
            words(text),
            [&["fairseq-train", "x", "--lr", "1"][..], &["tee", "log.txt"], &["echo", "done"], &["ls"]]
        );
        assert_eq!(script.commands[0].assigned["CUDA_VISIBLE_DEVICES"], "0,1");
        assert_eq!(words("python $(which fairseq-train) a"), [["python", "$(which", "fairseq-train)", "a"]]);
    }

    #[test]
    fn words_from_a_shell_are_not_expanded_again() {
        let words = ["DIST=/d", "python3", "train.py", "--data", "a b"].map(str::to_owned);
        let script = from_words(&words);
        assert_eq!(script.commands[0].words, words[1..]);
        assert_eq!(script.commands[0].assigned["DIST"], "/d");
    }

    #[test]
    fn an_open_quote_is_an_error() {
        for text in ["a 'b", "a \"b"] {
            assert!(parse(text, &|_| None).unwrap_err().contains("not closed"), "{text}");
        }
    }
}
