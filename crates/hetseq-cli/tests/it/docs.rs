//! The documents: links lead to pages and headings that exist, the book contains every page, tables of
//! config keys are what the program prints, and files that a text names exist. Their commands are
//! checked in `src/documented_commands.rs`.
//!
//! With `INSTA_UPDATE=always` the tables are written into the pages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use fs_err as fs;

use crate::cluster::Job;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The files below `dir`, without those of builds.
fn files(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() && !path.ends_with("target") {
            found.extend(files(&path, extensions));
        } else if extensions.iter().any(|extension| path.extension().is_some_and(|found| found == *extension)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// All pages: path from the root, and text.
fn pages() -> BTreeMap<PathBuf, String> {
    let root = root();
    let of_root = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    let of_root = of_root.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let all = of_root.chain(files(&root.join("docs"), &["md"]));
    all.map(|path| (path.strip_prefix(&root).unwrap().to_owned(), fs::read_to_string(&path).unwrap())).collect()
}

/// The lines outside fenced code blocks.
fn prose(text: &str) -> Vec<&str> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            lines.push(line);
        }
    }
    lines
}

/// The text without `code`, and the pieces of `code`.
fn without_code(line: &str) -> (String, Vec<&str>) {
    let parts: Vec<&str> = line.split('`').collect();
    (parts.iter().step_by(2).copied().collect(), parts.into_iter().skip(1).step_by(2).collect())
}

/// The targets of `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let whole: String = prose(text).join(" ");
    let (plain, _) = without_code(&whole);
    plain.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned).collect()
}

/// The anchors of the headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings =
        prose(text).into_iter().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |title: &str| -> String {
        let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | ' ');
        title.to_lowercase().chars().filter(kept).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    let numbered = headings.map(|title| {
        let anchor = anchor(title);
        let count = seen.entry(anchor.clone()).or_default();
        *count += 1;
        if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
    });
    numbered.collect()
}

/// `a/../b.md` as `b.md`.
fn normalized(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        if part == Component::ParentDir {
            path.pop();
        } else {
            path.push(part);
        }
        path
    })
}

#[test]
fn links_lead_to_pages_and_headings() {
    let pages = pages();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (page, text) in &pages {
        let local = links(text).into_iter().filter(|link| !link.starts_with("http"));
        for link in local {
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { normalized(&page.parent().unwrap().join(file)) };
            let is_outside = page.starts_with("docs") && !target.starts_with("docs");
            if !root().join(&target).exists() {
                wrong.push(format!("{}: {link}: there is no {}", page.display(), target.display()));
            } else if is_outside {
                wrong.push(format!("{}: {link} is not in the book; name the file without a link", page.display()));
            } else if !anchor.is_empty() && !pages.get(&target).is_some_and(|text| anchors(text).contains(anchor)) {
                wrong.push(format!("{}: {link}: there is no such heading", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 80, "found only {count} links");
}

#[test]
fn the_book_contains_every_page() {
    let pages = pages();
    let summary = Path::new("docs/SUMMARY.md");
    let listed: Vec<PathBuf> = links(&pages[summary]).iter().map(|link| Path::new("docs").join(link)).collect();
    let unique: BTreeSet<&PathBuf> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "a page is listed twice: {listed:?}");
    let in_docs: BTreeSet<&PathBuf> =
        pages.keys().filter(|page| page.starts_with("docs") && *page != summary).collect();
    assert_eq!(unique, in_docs);
    let book = fs::read_to_string(root().join("book.toml")).unwrap();
    assert!(book.contains("src = \"docs\""), "{book}");
    for page in in_docs {
        assert!(pages[page].starts_with("# "), "{} does not begin with a title", page.display());
    }
}

const TABLE: &str = "<!-- hetseq config reference ";
const TABLE_END: &str = "<!-- end -->\n";

/// Replaces what is between the marks by what the command in the first mark prints. Adds the names
/// of the tables to `names`.
fn with_tables(text: &str, names: &mut Vec<String>) -> String {
    let mut parts = text.split(TABLE);
    let mut new = parts.next().unwrap().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(" -->\n").unwrap();
        let (_, after) = rest.split_once(TABLE_END).unwrap_or_else(|| panic!("the table of {name} has no end"));
        let table = Job::new(["config", "reference", name]).succeed();
        new.push_str(&format!("{TABLE}{name} -->\n\n{}\n\n{TABLE_END}{after}", table.trim_end()));
        names.push(name.to_owned());
    }
    new
}

#[test]
fn tables_of_keys_are_what_the_program_prints() {
    let mut names = Vec::new();
    for (page, text) in pages() {
        let new = with_tables(&text, &mut names);
        if new != text && std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
            fs::write(root().join(&page), new).unwrap();
        } else {
            assert!(new == text, "the tables in {} are old: set INSTA_UPDATE=always and run this test", page.display());
        }
    }
    let all = Job::new(["config", "reference"]).succeed();
    let headings = all.lines().filter_map(|line| line.strip_prefix("### "));
    let mut expected: Vec<&str> =
        headings.map(|title| title.rsplit(' ').next().unwrap().trim_matches(['[', ']'])).collect();
    expected.sort_unstable();
    names.sort();
    assert_eq!(names, expected, "each table is in one page");
}

/// Files of this repository that pages, configs, messages and comments name.
#[test]
fn named_files_exist() {
    let root = root();
    let folders = ["configs/", "examples/", "scripts/", "docs/", "crates/"];
    let is_pattern = |name: &str| name.contains(['*', '<', '{', ' ', '$']) || name.contains("...");
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        // What changed, changed in files that may be gone.
        if page == Path::new("CHANGELOG.md") {
            continue;
        }
        for line in prose(&text) {
            let named =
                without_code(line).1.into_iter().filter(|code| folders.iter().any(|folder| code.starts_with(folder)));
            wrong.extend(
                named
                    .filter(|name| !is_pattern(name) && !root.join(name).exists())
                    .map(|name| format!("{}: {name}", page.display())),
            );
        }
    }
    let sources =
        ["crates", "configs", "examples", "python", "scripts"].map(|dir| files(&root.join(dir), &["rs", "toml", "py"]));
    for file in sources.concat() {
        let text = fs::read_to_string(&file).unwrap();
        for rest in text.split("docs/").skip(1) {
            let name =
                rest.split(|letter: char| !letter.is_ascii_alphanumeric() && !"-_./".contains(letter)).next().unwrap();
            let name = name.trim_end_matches('.');
            if name.ends_with(".md") && !root.join("docs").join(name).exists() {
                wrong.push(format!("{}: docs/{name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn links_and_anchors_are_found() {
    let page = "# One `two` three\n## Same\n[a](x.md#b) and `[no](y.md)`\n```\n[no](z.md)\n# no\n```\n## Same\n[b\nc](#same-1)\n";
    assert_eq!(links(page), ["x.md#b", "#same-1"]);
    assert_eq!(anchors(page).into_iter().collect::<Vec<_>>(), ["one-two-three", "same", "same-1"]);
    assert_eq!(normalized(Path::new("x/y/../a.md")), Path::new("x/a.md"));
}
