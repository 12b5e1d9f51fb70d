//! A pasted command line, or a whole script, as a shell would cut it up: quotes, continued lines, variables, comments,
//! redirections. Pure, and no shell: nothing is run, and `$(...)` stays as it stands.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

/// One simple command: what was assigned in front of it, and its words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Simple {
    pub(super) assigned: BTreeMap<String, String>,
    pub(super) words: Vec<String>,
}

/// What was read: the commands in order, and the variables that nobody has set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) commands: Vec<Simple>,
    pub(super) unset: Vec<String>,
}

/// `environment` is asked for variables that the text does not set itself.
pub(super) fn parse(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Script, String> {
    let mut reader = Reader {
        rest: text.chars().peekable(),
        environment,
        variables: BTreeMap::new(),
        script: Script::default(),
        command: Simple::default(),
        word: None,
        skips_word: false,
    };
    reader.read()?;
    Ok(reader.script)
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    environment: &'a dyn Fn(&str) -> Option<String>,
    variables: BTreeMap<String, String>,
    script: Script,
    command: Simple,
    /// None between words; an empty one was quoted.
    word: Option<String>,
    /// The next word is where something is redirected to.
    skips_word: bool,
}

impl Reader<'_> {
    fn read(&mut self) -> Result<(), String> {
        while let Some(character) = self.rest.next() {
            match character {
                '\\' => match self.rest.next() {
                    Some('\n') | None => {}
                    // Windows ends its lines with two characters.
                    Some('\r') if self.rest.peek() == Some(&'\n') => _ = self.rest.next(),
                    Some(next) => self.push(next),
                },
                '\'' => self.single_quoted()?,
                '"' => self.double_quoted()?,
                '$' => self.dollar()?,
                '`' => {
                    let inside = self.until('`', "`")?;
                    self.push_all(&format!("`{inside}`"));
                }
                '~' if self.at_start_of_path() && matches!(self.rest.peek(), None | Some('/' | ' ' | '\t' | '\n')) => {
                    let home = (self.environment)("HOME").unwrap_or_else(|| "~".to_owned());
                    self.push_all(&home);
                }
                '#' if self.word.is_none() => while self.rest.next_if(|&next| next != '\n').is_some() {},
                ' ' | '\t' | '\r' => self.end_word(),
                '\n' | ';' | '|' | '&' => self.end_command(),
                '<' | '>' => self.redirect(),
                other => self.push(other),
            }
        }
        self.end_command();
        Ok(())
    }

    fn push(&mut self, character: char) {
        self.word.get_or_insert_default().push(character);
    }

    fn push_all(&mut self, text: &str) {
        self.word.get_or_insert_default().push_str(text);
    }

    /// `~` means home at the start of a word and of an assigned value.
    fn at_start_of_path(&self) -> bool {
        self.word.as_ref().is_none_or(|word| assignment(word).is_some_and(|(_, value)| value.is_empty()))
    }

    fn single_quoted(&mut self) -> Result<(), String> {
        let inside = self.until('\'', "'")?;
        self.push_all(&inside);
        Ok(())
    }

    fn double_quoted(&mut self) -> Result<(), String> {
        self.push_all("");
        loop {
            match self.rest.next() {
                None => return Err(unclosed("\"")),
                Some('"') => return Ok(()),
                Some('$') => self.dollar()?,
                Some('\\') => match self.rest.next() {
                    None => return Err(unclosed("\"")),
                    Some('\n') => {}
                    Some(next @ ('"' | '\\' | '$' | '`')) => self.push(next),
                    Some(next) => {
                        self.push('\\');
                        self.push(next);
                    }
                },
                Some(other) => self.push(other),
            }
        }
    }

    /// `$NAME`, `${NAME}`, `$(command)`, or the dollar of a prompt.
    fn dollar(&mut self) -> Result<(), String> {
        let is_name = |character: &char| character.is_ascii_alphanumeric() || *character == '_';
        let name = match self.rest.peek() {
            Some('(') => {
                self.rest.next();
                let inside = self.until(')', "$(")?;
                self.push_all(&format!("$({inside})"));
                return Ok(());
            }
            Some('{') => {
                self.rest.next();
                self.until('}', "${")?
            }
            Some(next) if is_name(next) => {
                let mut name = String::new();
                while let Some(next) = self.rest.next_if(is_name) {
                    name.push(next);
                }
                name
            }
            _ => {
                self.push('$');
                return Ok(());
            }
        };
        let value = self.variables.get(&name).cloned().or_else(|| (self.environment)(&name));
        match value {
            Some(value) => self.push_all(&value),
            None => {
                let shown = format!("${{{name}}}");
                self.push_all(&shown);
                if !self.script.unset.contains(&shown) {
                    self.script.unset.push(shown);
                }
            }
        }
        Ok(())
    }

    fn until(&mut self, end: char, opened: &str) -> Result<String, String> {
        let mut inside = String::new();
        loop {
            match self.rest.next() {
                None => return Err(unclosed(opened)),
                Some(next) if next == end => return Ok(inside),
                Some(next) => inside.push(next),
            }
        }
    }

    fn redirect(&mut self) {
        // The digit of `2>&1` is not a word.
        if self.word.as_ref().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        while self.rest.next_if(|next| matches!(next, '>' | '<' | '&')).is_some() {}
        self.skips_word = true;
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if std::mem::take(&mut self.skips_word) {
            return;
        }
        // What documents show in front of a command.
        let is_noise = ["$", ">", "export", "env"].contains(&word.as_str());
        match assignment(&word) {
            _ if self.command.words.is_empty() && is_noise => {}
            Some((name, value)) if self.command.words.is_empty() => {
                self.variables.insert(name.to_owned(), value.to_owned());
                self.command.assigned.insert(name.to_owned(), value.to_owned());
            }
            _ => self.command.words.push(word),
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.skips_word = false;
        let command = std::mem::take(&mut self.command);
        if !command.words.is_empty() {
            self.script.commands.push(command);
        }
    }
}

/// `NAME=value`.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let is_name = name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    (starts_well && is_name).then_some((name, value))
}

fn unclosed(opened: &str) -> String {
    format!("--from-flags: {opened} is opened and not closed; put the whole command line in quotes of the other kind")
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
    }

    #[test]
    fn variables_come_from_the_text_then_from_outside() {
        let text =
            "$ DIST=~/hetseq\nexport AD=10.0.0.1:11111\npython3 ${DIST}/train.py --a tcp://$AD --b '$AD' --c \"${NO}\"";
        let script = script(text);
        let expected =
            ["python3", "/home/me/hetseq/train.py", "--a", "tcp://10.0.0.1:11111", "--b", "$AD", "--c", "${NO}"];
        assert_eq!(script.commands.last().unwrap().words, expected);
        assert_eq!(script.unset, ["${NO}"]);
    }

    #[test]
    fn what_is_around_the_command_falls_away() {
        let text = "#!/bin/bash\n#$-q gpu\nCUDA_VISIBLE_DEVICES=0,1 fairseq-train x --lr 1 2>&1 | tee log.txt\necho done > out; ls & # no";
        let script = script(text);
        assert_eq!(
            words(text),
            [&["fairseq-train", "x", "--lr", "1"][..], &["tee", "log.txt"], &["echo", "done"], &["ls"]]
        );
        assert_eq!(script.commands[0].assigned["CUDA_VISIBLE_DEVICES"], "0,1");
        assert_eq!(words("python $(which fairseq-train) a"), [["python", "$(which fairseq-train)", "a"]]);
    }

    #[test]
    fn what_is_not_closed_is_named() {
        for text in ["a 'b", "a \"b", "a ${b", "a $(b", "a `b"] {
            assert!(parse(text, &|_| None).unwrap_err().contains("not closed"), "{text}");
        }
    }
}
