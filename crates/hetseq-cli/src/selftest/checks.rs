//! Which checks `hetseq selftest` runs on a device, in their order, and the messages in which the
//! process that tests a device reports them. Pure.

use hetseq_train::Dtype;
use hetseq_train::bench::Operation;
use serde::{Deserialize, Serialize};

use super::compare::CheckStatus;
use super::data::NAMES;

/// The devices that are tested together, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    /// In the syntax of `run.devices`.
    pub(super) name: String,
    pub(super) kind: SubjectKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubjectKind {
    Gpu,
    Cpu,
    /// Several GPUs in one training. Each is also a subject by itself.
    SeveralGpus,
}

impl Subject {
    /// The subject of a name that was accepted before. Several names are several GPUs.
    pub(super) fn new(name: &str) -> Self {
        let kind = match name {
            name if name.contains(',') => SubjectKind::SeveralGpus,
            name if name == "cpu" || name.starts_with("cpu:") => SubjectKind::Cpu,
            _ => SubjectKind::Gpu,
        };
        Subject { name: name.to_owned(), kind }
    }

    /// The devices of a training with this subject and the CPU.
    pub(super) fn with_cpu(&self) -> String {
        format!("{},cpu:1", self.name)
    }
}

/// One step of a test. Most give one result, some several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TestStep {
    /// Opens the device and finds its precisions.
    Open,
    Operation(usize, Dtype),
    /// Gradients and a short training in `f32`.
    Training(usize),
    LowPrecision(usize, Dtype),
    /// A training with the CPU as a second device.
    WithCpu(usize),
    Repeated(usize),
    Speed,
    Memory,
}

/// The models (indices of [`NAMES`]) for checks that need not be repeated with all of them: one with
/// convolutions, one with attention.
const TYPICAL: [usize; 2] = [0, 2];

impl TestStep {
    /// All steps for a subject, in their order.
    pub(super) fn all(kind: SubjectKind) -> Vec<TestStep> {
        let mut steps = vec![TestStep::Open];
        if kind == SubjectKind::SeveralGpus {
            steps.extend(TYPICAL.map(TestStep::WithCpu));
            return steps;
        }
        for precision in Dtype::ALL {
            let operations = Operation::ALL.iter().enumerate();
            let chosen = operations.filter(|(_, operation)| precision == Dtype::F32 || operation.has_products);
            steps.extend(chosen.map(|(at, _)| TestStep::Operation(at, precision)));
        }
        steps.extend((0..NAMES.len()).map(TestStep::Training));
        for precision in [Dtype::F16, Dtype::Bf16] {
            steps.extend(TYPICAL.map(|model| TestStep::LowPrecision(model, precision)));
        }
        if kind == SubjectKind::Gpu {
            steps.extend(TYPICAL.map(TestStep::WithCpu));
        }
        steps.extend(TYPICAL.map(TestStep::Repeated));
        steps.extend([TestStep::Speed, TestStep::Memory]);
        steps
    }

    /// The name in messages, and what `--only` looks at.
    pub(super) fn name(self) -> String {
        let model = |at: usize| NAMES.get(at).copied().unwrap_or_default();
        match self {
            TestStep::Open => "opening the device".to_owned(),
            TestStep::Operation(at, precision) => {
                let name = Operation::ALL.get(at).map_or("", |operation| operation.name);
                with_precision(name, precision)
            }
            TestStep::Training(at) => format!("training of {}", model(at)),
            TestStep::LowPrecision(at, precision) => with_precision(&format!("training of {}", model(at)), precision),
            TestStep::WithCpu(at) => format!("training of {} with the CPU", model(at)),
            TestStep::Repeated(at) => format!("repeated training of {}", model(at)),
            TestStep::Speed => "speed".to_owned(),
            TestStep::Memory => "memory".to_owned(),
        }
    }

    /// Whether to run it. `only` is empty for all. A device must be opened in any case.
    pub(super) fn is_selected(self, only: &[String]) -> bool {
        self == TestStep::Open || only.is_empty() || only.iter().any(|text| self.name().contains(text.as_str()))
    }
}

fn with_precision(name: &str, precision: Dtype) -> String {
    if precision == Dtype::F32 { name.to_owned() } else { format!("{name}, {precision}") }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckResult {
    pub(crate) check: String,
    pub(crate) status: CheckStatus,
    /// Measured values and tolerances, or why it failed.
    pub(crate) figures: String,
}

impl CheckResult {
    pub(super) fn new(check: impl Into<String>, status: CheckStatus, figures: impl Into<String>) -> Self {
        CheckResult { check: check.into(), status, figures: figures.into() }
    }

    pub(super) fn failed(check: impl Into<String>, reason: impl ToString) -> Self {
        CheckResult::new(check, CheckStatus::Failed, reason.to_string())
    }
}

/// A line of the process that tests a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckMessage {
    /// A step begins. `step` is its index.
    Begin {
        step: usize,
        name: String,
    },
    Result(CheckResult),
    /// All steps are done.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_steps_are_unique_and_select() {
        for kind in [SubjectKind::Gpu, SubjectKind::Cpu, SubjectKind::SeveralGpus] {
            let steps = TestStep::all(kind);
            let mut names: Vec<String> = steps.iter().map(|step| step.name()).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), steps.len(), "{names:?}");
        }
        let only = ["with the CPU".to_owned()];
        let gpu = TestStep::all(SubjectKind::Gpu);
        assert_eq!(gpu.iter().filter(|step| step.is_selected(&only)).count(), 1 + TYPICAL.len());
        assert!(gpu.iter().all(|step| step.is_selected(&[])));
    }

    #[test]
    fn a_cpu_is_not_trained_with_itself() {
        assert_eq!(Subject::new("cpu:2").kind, SubjectKind::Cpu);
        assert_eq!(Subject::new("gpu:0,gpu:1").kind, SubjectKind::SeveralGpus);
        assert_eq!(Subject::new("cuda:0").kind, SubjectKind::Gpu);
        assert!(!TestStep::all(SubjectKind::Cpu).iter().any(|step| matches!(step, TestStep::WithCpu(_))));
    }
}
