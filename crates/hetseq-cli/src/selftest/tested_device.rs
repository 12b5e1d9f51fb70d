//! Tests one device, in a process of its own, because a driver may crash it. Prints a line of JSON
//! per message ([`CheckMessage`]); `test_process.rs` reads them.

use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;

use hetseq_train::bench::{Operation, StepRequest, Trial, TrialFault, TrialRequest, precisions_of, step_of_geometry};
use hetseq_train::{DeviceKind, DeviceSpec, Dtype, Tasks, TrainError, devices_named};

use super::args::{EmulatedFault, SelftestArgs};
use super::checks::{CheckMessage, CheckResult, Subject, TestStep};
use super::compare::{CheckStatus, Tolerance, difference, same_bits, worst_gradient, worst_loss};
use super::data::{BATCH, TestModel, models};
use super::memory;
use crate::table::rate;

/// Updates of a short training.
const UPDATES: usize = 20;
/// Updates of a training that is repeated.
const REPEATED_UPDATES: usize = 4;
/// The reference.
const ONE_CORE: &str = "cpu:1";
/// A step of the smallest BERT that takes longer marks a device too slow for a larger one.
const SLOW_STEP_MS: f64 = 60.0;

/// Runs the checks from `args.first` on and prints their results.
pub(super) fn examine(tasks: &Tasks, args: &SelftestArgs, name: &str) -> anyhow::Result<ExitCode> {
    let subject = Subject::new(name);
    let specs = devices_named(name).map_err(anyhow::Error::msg)?;
    let models = args.data.as_deref().map(models).unwrap_or_default();
    let emulate = args.emulate;
    let mut device =
        TestedDevice { tasks, subject, specs, models, emulate, precisions: Vec::new(), on_one_core: HashMap::new() };
    let steps = TestStep::all(device.subject.kind).into_iter().enumerate();
    for (at, step) in steps.filter(|(at, step)| *step == TestStep::Open || *at >= args.first) {
        if !step.is_selected(&args.only) {
            continue;
        }
        // After a crash the device is opened again, but that is not reported again.
        let is_reported = at >= args.first;
        if is_reported {
            send(&CheckMessage::Begin { step: at, name: step.name() });
        }
        let results = device.run(step);
        let is_open = step != TestStep::Open || results.iter().all(|result| result.status == CheckStatus::Ok);
        results.into_iter().filter(|_| is_reported || !is_open).for_each(|result| send(&CheckMessage::Result(result)));
        if !is_open {
            break;
        }
    }
    send(&CheckMessage::End);
    Ok(ExitCode::SUCCESS)
}

/// Prints a message. Ends this process if the other one no longer reads.
fn send(message: &CheckMessage) {
    let mut out = std::io::stdout().lock();
    let text = serde_json::to_string(message).unwrap_or_default();
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

struct TestedDevice<'a> {
    tasks: &'a Tasks,
    subject: Subject,
    specs: Vec<DeviceSpec>,
    models: Vec<TestModel>,
    emulate: Option<EmulatedFault>,
    precisions: Vec<Dtype>,
    /// Trainings on the reference, by model.
    on_one_core: HashMap<usize, Trial>,
}

impl TestedDevice<'_> {
    fn run(&mut self, step: TestStep) -> Vec<CheckResult> {
        let results = match step {
            TestStep::Open => self.open(),
            TestStep::Operation(at, precision) if self.precisions.contains(&precision) => self.operation(at, precision),
            TestStep::Training(model) => self.training(model),
            TestStep::LowPrecision(model, precision) if self.precisions.contains(&precision) => {
                self.low_precision(model, precision)
            }
            TestStep::Operation(..) | TestStep::LowPrecision(..) => Ok(Vec::new()),
            TestStep::WithCpu(model) => self.with_cpu(model),
            TestStep::Repeated(model) => self.repeated(model),
            TestStep::Speed => self.speed(),
            TestStep::Memory => memory::check(&self.subject, self.specs.first()),
        };
        results.unwrap_or_else(|reason| vec![CheckResult::failed(step.name(), reason)])
    }

    fn open(&mut self) -> Result<Vec<CheckResult>, String> {
        let mut common = Dtype::ALL.to_vec();
        for spec in &self.specs {
            let precisions = precisions_of(spec).map_err(|error| format!("{spec}: {error}"))?;
            common.retain(|precision| precisions.contains(precision));
        }
        let names: Vec<String> = common.iter().map(Dtype::to_string).collect();
        let is_usable = common.contains(&Dtype::F32);
        self.precisions = common;
        let status = if is_usable { CheckStatus::Ok } else { CheckStatus::Failed };
        let lacking = if is_usable { "" } else { "; f32 is needed" };
        let figures = format!("multiplies matrices in {}{lacking}", names.join(", "));
        Ok(vec![CheckResult::new(TestStep::Open.name(), status, figures)])
    }

    /// A CPU's operations are compared on as many threads as it has devices.
    fn operation(&self, at: usize, precision: Dtype) -> Result<Vec<CheckResult>, String> {
        let (Some(operation), Some(first)) = (Operation::ALL.get(at), self.specs.first()) else {
            return Ok(Vec::new());
        };
        let threads = self.specs.iter().map(DeviceSpec::threads).sum();
        let spec = match first.kind {
            DeviceKind::Cpu { .. } => DeviceSpec::cpu(0, threads),
            _ => first.clone(),
        };
        let reference = operation.run(&DeviceSpec::cpu(0, 1), Dtype::F32);
        let expected = reference.map_err(|error| format!("one CPU core: {error}"))?;
        let found = operation.run(&spec, precision).map_err(|error| error.to_string())?;
        let name = TestStep::Operation(at, precision).name();
        if operation.is_exact {
            let is_same = same_bits(&found.output, &expected.output);
            let (status, figures) = match is_same {
                true => (CheckStatus::Ok, "the same bits"),
                false => (CheckStatus::Failed, "must have the same bits, but has not"),
            };
            return Ok(vec![CheckResult::new(name, status, figures)]);
        }
        let tolerance = Tolerance::of_operation(precision, operation.has_long_sums);
        let output = difference(&found.output, &expected.output);
        let gradient = difference(&found.gradient, &expected.gradient);
        let figures =
            format!("output {}, gradient {} (tolerance {:e})", shown(output), shown(gradient), tolerance.expected);
        Ok(vec![CheckResult::new(name, tolerance.judge(output.max(gradient)), figures)])
    }

    fn training(&mut self, model: usize) -> Result<Vec<CheckResult>, String> {
        if let Some(fault) = self.emulate {
            fault.strike();
        }
        let fault = self.emulate.and_then(EmulatedFault::of_trial);
        let found = self.trial(model, self.subject.name.clone(), UPDATES, fault);
        let found = found.map_err(|error| error.to_string())?;
        self.compare(model, &found, Dtype::F32, TestStep::Training(model))
    }

    fn low_precision(&mut self, model: usize, precision: Dtype) -> Result<Vec<CheckResult>, String> {
        let devices = format!("{}@{precision}", self.subject.name);
        let found = self.trial(model, devices, UPDATES, None).map_err(|error| error.to_string())?;
        self.compare(model, &found, precision, TestStep::LowPrecision(model, precision))
    }

    fn with_cpu(&mut self, model: usize) -> Result<Vec<CheckResult>, String> {
        let found = self.trial(model, self.subject.with_cpu(), UPDATES, None).map_err(|error| error.to_string())?;
        self.compare(model, &found, Dtype::F32, TestStep::WithCpu(model))
    }

    /// Compares a training with the same on one core: its gradients, and its losses.
    fn compare(
        &mut self,
        model: usize,
        found: &Trial,
        precision: Dtype,
        step: TestStep,
    ) -> Result<Vec<CheckResult>, String> {
        let has_kinks = self.models.get(model).is_some_and(|model| model.has_kinks);
        let expected = self.reference(model)?;
        let ranges: Vec<_> = expected.entries.iter().map(|entry| entry.range.clone()).collect();
        let pairs = found.gradients.iter().zip(&expected.gradients);
        let worst = pairs.map(|(found, expected)| worst_gradient(found, expected, &ranges));
        let (gradient, at) = worst.fold((0.0, 0), |worst, next| if next.0 > worst.0 { next } else { worst });
        let parameter = expected.entries.get(at).map_or("", |entry| entry.name.as_str());
        let tolerance = Tolerance::of_gradients(precision);
        let gradients = CheckResult::new(
            step.name().replacen("training", "gradients", 1),
            tolerance.judge(gradient),
            format!("at most {} ({parameter}; tolerance {:e})", shown(gradient), tolerance.expected),
        );
        let loss = worst_loss(&found.losses, &expected.losses);
        let tolerance = Tolerance::of_losses(precision, has_kinks);
        let overflows = match found.overflows {
            0 => String::new(),
            count => format!(", {count} updates skipped after an overflow"),
        };
        let ends = |losses: &[f64]| losses.first().copied().zip(losses.last().copied()).unwrap_or_default();
        let (first, last) = ends(&found.losses);
        let training = CheckResult::new(
            step.name(),
            tolerance.judge(loss),
            format!(
                "{UPDATES} updates, loss {first:.3} to {last:.3}, differs by at most {} (tolerance {:e}){overflows}",
                shown(loss),
                tolerance.expected
            ),
        );
        Ok(vec![gradients, training])
    }

    fn repeated(&self, model: usize) -> Result<Vec<CheckResult>, String> {
        let run = || self.trial(model, self.subject.name.clone(), REPEATED_UPDATES, None);
        let failed = |error: TrainError| error.to_string();
        let (first, second) = (run().map_err(failed)?, run().map_err(failed)?);
        let name = TestStep::Repeated(model).name();
        if same_bits(&first.parameters, &second.parameters) {
            return Ok(vec![CheckResult::new(name, CheckStatus::Ok, "the same bits")]);
        }
        let worst = difference(&second.parameters, &first.parameters);
        let status = Tolerance { expected: 0.0, ..Tolerance::of_gradients(Dtype::F32) }.judge(worst);
        Ok(vec![CheckResult::new(name, status, format!("not the same bits: parameters differ by {}", shown(worst)))])
    }

    fn speed(&self) -> Result<Vec<CheckResult>, String> {
        let request =
            |devices: &str, batch| StepRequest { devices: devices.to_owned(), batch: Some(batch), steps: 5, warmup: 2 };
        let mut results = Vec::new();
        let mut add = |name: &str, unit: &str, found: f64, core: f64| {
            let figures =
                format!("{} {unit}/s, {:.2} times one CPU core ({} {unit}/s)", rate(found), found / core, rate(core));
            results.push(CheckResult::new(format!("speed of {name}"), CheckStatus::Ok, figures));
        };
        let failed = |error: TrainError| error.to_string();
        if let Some(model) = self.models.first() {
            let step = |devices: &str| self.tasks.bench_step(&model.source, &request(devices, 64)).map_err(failed);
            let (found, core) = (step(&self.subject.name)?, step(ONE_CORE)?);
            add(model.name, "samples", found.samples_per_second, core.samples_per_second);
        }
        for (geometry, batch) in [("tiny", 16), ("small", 16)] {
            let step = |devices: &str| step_of_geometry(geometry, 0.0, &request(devices, batch)).map_err(failed);
            let found = step(&self.subject.name)?;
            add(&format!("BERT ({geometry})"), "tokens", found.tokens_per_s, step(ONE_CORE)?.tokens_per_s);
            if found.step_ms > SLOW_STEP_MS {
                break;
            }
        }
        Ok(results)
    }

    /// The training on one core, computed once.
    fn reference(&mut self, model: usize) -> Result<&Trial, String> {
        if !self.on_one_core.contains_key(&model) {
            let trial = self.trial(model, ONE_CORE.to_owned(), UPDATES, None);
            self.on_one_core.insert(model, trial.map_err(|error| format!("one CPU core: {error}"))?);
        }
        self.on_one_core.get(&model).ok_or_else(|| "one CPU core: no result".to_owned())
    }

    fn trial(
        &self,
        model: usize,
        devices: String,
        updates: usize,
        fault: Option<TrialFault>,
    ) -> Result<Trial, TrainError> {
        let source = &self.models.get(model).ok_or_else(|| TrainError::Config("no such model".to_owned()))?.source;
        self.tasks.trial(source, &TrialRequest { devices, batch: BATCH, updates, fault })
    }
}

/// A relative difference. One that is not finite comes from values that are not.
fn shown(difference: f64) -> String {
    match difference {
        0.0 => "0".to_owned(),
        d if d.is_finite() => format!("{d:.1e}"),
        _ => "not finite".to_owned(),
    }
}
