//! Flags of the original HetSeq and of fairseq-train 0.9 and 0.10. The table is in `known.rs`;
//! `docs/migrating.md` documents the same flags, and a test checks that it names all of them.

mod known;

pub(super) use known::FLAGS;

/// One or more flags that are converted in the same way.
#[derive(Debug)]
pub(super) struct Flag {
    /// Names without leading dashes; `-` and `_` inside are equivalent. `prefix*` matches all names
    /// with that prefix.
    pub(super) names: &'static [&'static str],
    pub(super) takes: Takes,
    pub(super) origin: Origin,
    pub(super) becomes: Becomes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    Value,
    /// An integer; 0 and -1 mean not given.
    Count,
    /// An optional value.
    Maybe,
}

impl Takes {
    pub(super) fn needs_value(self) -> bool {
        matches!(self, Takes::Value | Takes::Count)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Hetseq,
    Fairseq,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Becomes {
    /// One key with the same value.
    Key(&'static str, FlagKind),
    /// Part of a setting that several flags determine; the text names it.
    Combined(&'static str),
    /// Nothing; the text explains why it is not needed.
    NotNeeded(&'static str),
    /// Nothing; the text tells the user what to do.
    Manual(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlagKind {
    /// An integer.
    Count,
    /// An integer; 0 and -1 mean not given.
    Limit,
    /// A number; 0 and -1 mean not given.
    Bound,
    Text,
}

/// (alias, canonical name) of flags with several names.
const ALIASES: [(&str, &str); 11] = [
    ("batch-size", "max-sentences"),
    ("learning-rate", "lr"),
    ("me", "max-epoch"),
    ("mu", "max-update"),
    ("fa", "force-anneal"),
    ("wd", "weight-decay"),
    ("dadelta-weight-decay", "weight-decay"),
    ("adadelta-eps", "adam-eps"),
    ("stop-min-lr", "min-lr"),
    ("nprocs-per-node", "distributed-num-procs"),
    ("local-rank", "device-id"),
];

/// The canonical name of a flag.
pub(super) fn canonical(name: &str) -> String {
    let name = name.replace('_', "-");
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, known)| (*known).to_owned())
}

/// The flag with this name, with dashes or underscores.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    let plain = |name: &str| name.replace('_', "-");
    let name = plain(name);
    let matches = |known: &&str| match known.strip_suffix('*') {
        Some(prefix) => name.starts_with(&plain(prefix)),
        None => plain(known) == name,
    };
    // An exact name takes precedence over a prefix.
    let exact = FLAGS.iter().find(|flag| flag.names.iter().any(|known| plain(known) == name));
    exact.or_else(|| FLAGS.iter().find(|flag| flag.names.iter().any(matches)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_match_with_dashes_and_underscores() {
        assert!(std::ptr::eq(find("lr_scheduler").unwrap(), find("lr-scheduler").unwrap()));
        assert_eq!(find("config-file").unwrap().names, ["config_file"]);
        assert!(find("encoder-embed-dim").unwrap().names.contains(&"encoder-*"));
        // An exact name takes precedence over a prefix.
        assert!(matches!(find("fp16").unwrap().becomes, Becomes::Manual(_)));
        assert!(matches!(find("fp16-init-scale").unwrap().becomes, Becomes::NotNeeded(_)));
        assert!(find("max-sentenses").is_none());
    }

    #[test]
    fn aliases_and_their_targets_are_known_flags() {
        for (alias, known) in ALIASES {
            assert!(find(alias).is_some() && find(known).is_some(), "{alias}, {known}");
            assert_eq!(canonical(known), known);
        }
        assert_eq!(canonical("dadelta_weight_decay"), "weight-decay");
    }

    #[test]
    fn each_name_is_listed_once() {
        let names: Vec<String> = FLAGS.iter().flat_map(|flag| flag.names).map(|name| name.replace('_', "-")).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn the_documentation_names_every_flag() {
        let page = include_str!("../../../../../docs/migrating.md");
        for name in FLAGS.iter().flat_map(|flag| flag.names) {
            let dashes = if name.len() == 1 { "-" } else { "--" };
            let shown = format!("`{dashes}{name}`");
            assert!(page.contains(&shown), "docs/migrating.md does not name {shown}");
        }
    }
}
