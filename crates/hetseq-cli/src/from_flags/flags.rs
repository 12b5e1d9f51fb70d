//! What can be said of a flag of the original HetSeq or of fairseq-train 0.9 and 0.10. The flags are in `table.rs`;
//! `docs/migrating.md` shows the same to people, and a test keeps the two in step.

mod table;

pub(super) use table::FLAGS;

/// One or more flags of which the same is to be said.
#[derive(Debug)]
pub(super) struct Flag {
    /// Without the dashes in front; `-` and `_` inside are the same. One that ends in `*` stands for all that begin so.
    pub(super) names: &'static [&'static str],
    pub(super) takes: Takes,
    pub(super) origin: Origin,
    pub(super) becomes: Becomes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    Value,
    /// A whole number; 0 and -1 are the same as not giving it.
    Count,
    /// A value if one follows.
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
    /// One key, with the value as it stands.
    Key(&'static str, Kind),
    /// Part of something that several flags make together; what, for people.
    Joins(&'static str),
    /// Nothing, because this is why it is not needed here.
    Unneeded(&'static str),
    /// Nothing, and a person should know.
    Look(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole number.
    Count,
    /// A whole number; 0 and -1 are the same as not giving it.
    Limit,
    /// A number; 0 and -1 are the same as not giving it.
    Bound,
    Text,
}

/// Other names of the same flag.
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

/// How the rest of this program calls what was typed as `name`.
pub(super) fn canonical(name: &str) -> String {
    let name = name.replace('_', "-");
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, known)| (*known).to_owned())
}

/// The flag called `name`, which was typed with dashes or underscores.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    let plain = |name: &str| name.replace('_', "-");
    let name = plain(name);
    let is_it = |known: &&str| match known.strip_suffix('*') {
        Some(start) => name.starts_with(&plain(start)),
        None => plain(known) == name,
    };
    // A whole name goes before the start of one.
    let whole = FLAGS.iter().find(|flag| flag.names.iter().any(|known| plain(known) == name));
    whole.or_else(|| FLAGS.iter().find(|flag| flag.names.iter().any(is_it)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_found_however_they_are_typed() {
        assert!(std::ptr::eq(find("lr_scheduler").unwrap(), find("lr-scheduler").unwrap()));
        assert_eq!(find("config-file").unwrap().names, ["config_file"]);
        assert!(find("encoder-embed-dim").unwrap().names.contains(&"encoder-*"));
        // A whole name goes before the start of another.
        assert!(matches!(find("fp16").unwrap().becomes, Becomes::Look(_)));
        assert!(matches!(find("fp16-init-scale").unwrap().becomes, Becomes::Unneeded(_)));
        assert!(find("max-sentenses").is_none());
    }

    #[test]
    fn aliases_are_flags_and_lead_to_flags() {
        for (alias, known) in ALIASES {
            assert!(find(alias).is_some() && find(known).is_some(), "{alias}, {known}");
            assert_eq!(canonical(known), known);
        }
        assert_eq!(canonical("dadelta_weight_decay"), "weight-decay");
    }

    #[test]
    fn each_flag_stands_there_once() {
        let names: Vec<String> = FLAGS.iter().flat_map(|flag| flag.names).map(|name| name.replace('_', "-")).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn the_page_for_people_knows_every_flag() {
        let page = include_str!("../../../../docs/migrating.md");
        for name in FLAGS.iter().flat_map(|flag| flag.names) {
            let dashes = if name.len() == 1 { "-" } else { "--" };
            let shown = format!("`{dashes}{name}`");
            assert!(page.contains(&shown), "docs/migrating.md does not know {shown}");
        }
    }
}
