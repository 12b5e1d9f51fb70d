//! The report of a self-test as Markdown, and the verdict about each device. Pure.

use super::checks::{CheckResult, Subject, SubjectKind};
use super::compare::CheckStatus;

/// All results for the devices that were tested together.
pub(super) struct SubjectResults {
    pub(super) subject: Subject,
    pub(super) results: Vec<CheckResult>,
}

impl SubjectResults {
    /// The worst status of a check.
    pub(super) fn status(&self) -> CheckStatus {
        self.results.iter().map(|result| result.status).max().unwrap_or(CheckStatus::Failed)
    }

    /// The conclusion, as one line.
    pub(super) fn verdict(&self) -> String {
        let all = self.results.len();
        let names = |status: CheckStatus| -> Vec<&str> {
            self.results.iter().filter(|result| result.status == status).map(|result| result.check.as_str()).collect()
        };
        let name = &self.subject.name;
        match self.status() {
            CheckStatus::Ok => format!("{name}: ok, {all} checks"),
            CheckStatus::Differs => {
                let differing = names(CheckStatus::Differs);
                format!(
                    "{name}: can be used; {} of {all} checks differ more than by rounding alone: {}",
                    differing.len(),
                    listed(&differing)
                )
            }
            CheckStatus::Failed => {
                let failed = names(CheckStatus::Failed);
                format!("{name}: FAILED, {} of {all} checks: {}. Do not train on it", failed.len(), listed(&failed))
            }
        }
    }
}

/// The first names of a list.
fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 3;
    let shown = names.get(..SHOWN.min(names.len())).unwrap_or_default().join("; ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

/// A check in one line of text.
pub(super) fn line(result: &CheckResult) -> String {
    format!("{:<8}{:<44} {}", result.status.word(), result.check, result.figures)
}

/// The whole report.
pub(super) fn report(rows: &[(&str, String)], devices: &[String], tested: &[SubjectResults]) -> String {
    let mut text = "# HetSeq self-test\n\n".to_owned();
    tested.iter().for_each(|results| text.push_str(&format!("- {}\n", results.verdict())));
    text.push_str("\n| | |\n|---|---|\n");
    rows.iter().for_each(|(name, value)| text.push_str(&format!("| {name} | {} |\n", cell(value))));
    text.push_str(&format!("\n## Devices\n\n```text\n{}\n```\n", devices.join("\n")));
    for SubjectResults { subject, results } in tested {
        text.push_str(&format!("\n## {}\n\n{}\n\n", subject.name, compared_with(subject.kind)));
        text.push_str("| result | check | figures |\n|---|---|---|\n");
        for CheckResult { check, status, figures } in results {
            text.push_str(&format!("| {} | {} | {} |\n", status.word(), cell(check), cell(figures)));
        }
    }
    text.push_str(
        "\n## How to read it\n\n\
         - `ok`: equal except for rounding, within the tolerance shown.\n\
         - `differs`: outside the tolerance, but near enough that it may be less exact arithmetic; or a repetition did not \
         give the same bits; or memory still grew. It can train; compare its first results with those of a CPU.\n\
         - `failed`: wrong, not finite, refused, crashed or timed out. Do not train on this device.\n\
         - Differences are relative: the norm of the difference over that of the CPU's result. For gradients the parameter \
         with the largest one is named. For losses it is the largest of all updates.\n\
         - Trainings use generated data, dropout with the same masks on all devices, and models small enough for any \
         device. Speeds of small models do not show what a large GPU can do: BERT (small) is nearest to real work.\n",
    );
    text
}

fn compared_with(kind: SubjectKind) -> &'static str {
    match kind {
        SubjectKind::Gpu => "Compared with one CPU core in f32.",
        SubjectKind::Cpu => {
            "The devices of the CPU, compared with one core in f32. Operations run on as many threads as there are devices."
        }
        SubjectKind::SeveralGpus => "These GPUs and one CPU core in one training, compared with one CPU core in f32.",
    }
}

/// Text in a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tested(name: &str, results: &[(&str, CheckStatus, &str)]) -> SubjectResults {
        let results = results.iter().map(|(check, status, figures)| CheckResult::new(*check, *status, *figures));
        SubjectResults { subject: Subject::new(name), results: results.collect() }
    }

    #[test]
    fn the_report_is_readable() {
        let good = tested("cpu", &[("gelu", CheckStatus::Ok, "output 1.0e-7, gradient 2.0e-7 (tolerance 1e-5)")]);
        let fair = tested(
            "gpu:0",
            &[
                ("gelu", CheckStatus::Ok, "output 1.0e-7, gradient 2.0e-7 (tolerance 1e-5)"),
                ("repeated training of bert-pretrain", CheckStatus::Differs, "not the same bits"),
            ],
        );
        let failed = CheckStatus::Failed;
        let bad = tested("gpu:1", &[("a", failed, "x|y\nz"), ("b", failed, ""), ("c", failed, ""), ("d", failed, "")]);
        let rows = [("hetseq", "0.1.0".to_owned()), ("system", "Linux".to_owned())];
        insta::assert_snapshot!(report(&rows, &["cpu     a model".to_owned()], &[good, fair, bad]));
    }

    #[test]
    fn without_results_nothing_is_ok() {
        assert_eq!(tested("gpu:0", &[]).status(), CheckStatus::Failed);
    }
}
