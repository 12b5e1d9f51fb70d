//! `~` in paths that no shell has expanded, such as those of config files. Used for config keys and
//! for arguments.

/// Replaces a leading `~` by the home directory. Other paths, also `~user/...`, stay as they are, and
/// all do if HOME is not set.
pub fn expand_home(path: &str) -> String {
    expand(path, std::env::var("HOME").ok().filter(|home| !home.is_empty()))
}

fn expand(path: &str, home: Option<String>) -> String {
    match (path.strip_prefix('~'), home) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            format!("{}{rest}", home.trim_end_matches('/'))
        }
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_leading_tilde_is_replaced() {
        let home = || Some("/home/a".to_owned());
        for (path, expected) in
            [("~", "/home/a"), ("~/x/~", "/home/a/x/~"), ("~b/x", "~b/x"), ("x/~", "x/~"), ("/~/x", "/~/x"), ("", "")]
        {
            assert_eq!(expand(path, home()), expected);
        }
        assert_eq!(expand("~/x", None), "~/x");
        assert_eq!(expand("~/x", Some("/".to_owned())), "/x");
    }
}
