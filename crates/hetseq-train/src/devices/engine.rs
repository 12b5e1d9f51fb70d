//! A device that is another program: starts an engine (`hetseq-engine`) and makes a replica of it. Used
//! for devices such as `torch:cuda:0` and `exec:COMMAND`, whatever the task is written in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hetseq_engine::{
    BatchFile, CollatedReply, ComputeReply, Engine, EngineCommand, EngineError, EngineHello, EngineRole, EngineWelcome,
    EvaluateReply, LayoutEntryMessage, MicroRequest, Python, SharedFile, TermMessage, batch_file, from_bits,
};
use hetseq_kernels::Dtype;
use hetseq_optim::{Layout, OptimError, ParameterGroups};
use serde_json::{Value, json};

use super::{DeviceKind, DeviceSpec, EngineProgram, PrecisionPolicy, StepParams};
use crate::data::loader::Job;
use crate::task::compute::{GradientSums, ReplicaSetup};
use crate::task::totals::add;
use crate::task::{Answer, Compute, ComputeError, HuggingFace, Metric, Replica, TaskError, Term, Totals};

/// A batch that a data process has collated, with the file of its arrays.
pub(crate) struct CollatedBatch {
    pub(crate) collated: CollatedReply,
    pub(crate) file: SharedFile,
}

/// What all engines of a run are started with.
#[derive(Clone)]
pub(crate) struct EngineSetup {
    pub(crate) python: Python,
    pub(crate) task: String,
    /// The `[task]` table.
    pub(crate) config: Value,
    pub(crate) terms: Vec<Term>,
    pub(crate) seed: u64,
}

/// Any compute half of a task, with engines as further devices.
pub(crate) struct WithEngines {
    pub(crate) inner: Arc<dyn Compute>,
    pub(crate) setup: EngineSetup,
}

impl Compute for WithEngines {
    fn layout(&self) -> Result<Layout, TaskError> {
        self.inner.layout()
    }

    fn initial(&self, layout: &Layout, seed: u64) -> Result<Vec<f32>, TaskError> {
        self.inner.initial(layout, seed)
    }

    fn groups(&self, layout: &Layout) -> Option<Result<ParameterGroups, OptimError>> {
        self.inner.groups(layout)
    }

    fn code(&self) -> Option<String> {
        self.inner.code()
    }

    fn all_devices(&self) -> Option<String> {
        self.inner.all_devices()
    }

    fn runs_on_cpu(&self) -> bool {
        self.inner.runs_on_cpu()
    }

    fn open(&self, spec: &DeviceSpec, setup: &ReplicaSetup) -> Result<Box<dyn Replica>, ComputeError> {
        match &spec.kind {
            DeviceKind::Engine { program, .. } => Ok(Box::new(EngineReplica::open(spec, program, &self.setup, setup)?)),
            _ => self.inner.open(spec, setup),
        }
    }

    fn metrics(&self, totals: &Totals) -> Result<Vec<Metric>, TaskError> {
        self.inner.metrics(totals)
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        self.inner.hugging_face()
    }
}

/// Starts an engine for one role, and checks its version.
pub(crate) fn start(
    launch: &EngineCommand,
    hello: &EngineHello,
    timeout: Duration,
) -> Result<(Engine, EngineWelcome), EngineError> {
    let (engine, welcome) = Engine::start(launch, hello, timeout)?;
    let ours = env!("CARGO_PKG_VERSION");
    match welcome.version.as_deref() {
        Some(theirs) if welcome.engine == "torch" && theirs != ours => Err(EngineError::Device(format!(
            "its Python package hetseq has version {theirs}, but this program has {ours}: install the same version of both"
        ))),
        _ => Ok((engine, welcome)),
    }
}

struct EngineReplica {
    engine: Engine,
    precision: Dtype,
    memory_bytes: Option<u64>,
    layout: Arc<Layout>,
    terms: usize,
    steps: Arc<AtomicU64>,
    parameters: SharedFile,
    gradients: SharedFile,
}

impl EngineReplica {
    fn open(
        spec: &DeviceSpec,
        program: &EngineProgram,
        task: &EngineSetup,
        setup: &ReplicaSetup,
    ) -> Result<Self, ComputeError> {
        let (launch, device) = match program {
            EngineProgram::Torch { device } => (task.python.launch(&spec.name, spec.threads(), &[]), device.clone()),
            EngineProgram::Exec { words } => {
                let mut words = words.iter().map(Into::into);
                let program = words.next().unwrap_or_default();
                let launch = EngineCommand {
                    name: spec.name.clone(),
                    program,
                    arguments: words.collect(),
                    environment: Vec::new(),
                };
                (launch, String::new())
            }
        };
        let requested = spec.precision.map_or(setup.policy, PrecisionPolicy::Fixed);
        let hello = EngineHello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: EngineRole::Device,
            device,
            threads: spec.threads(),
            precision: requested.into(),
            seed: task.seed,
        };
        let (mut engine, welcome) = start(&launch, &hello, setup.hang_timeout)?;
        let precision = welcome.precision.as_deref().unwrap_or("f32").parse().map_err(ComputeError::Device)?;
        if let PrecisionPolicy::Fixed(wanted) = requested
            && wanted != precision
        {
            let reason = format!("it computes in {precision}, not in {wanted}; use {}@{precision}", spec.name);
            return Err(ComputeError::Device(reason));
        }
        if let Some(name) = &welcome.device_name {
            tracing::info!("{}: {name}, {}", spec.name, versions(&welcome));
        }
        engine.request::<Value>(&json!({"do": "open", "task": task.task, "config": task.config}), &[])?;
        let ReplicaSetup { layout, steps, .. } = setup.clone();
        let parameters = shared_floats(layout.len())?;
        let gradients = shared_floats(layout.trainable_len())?;
        engine.request::<Value>(&layout_request(&layout, &task.terms), &[&parameters, &gradients])?;
        let (terms, memory_bytes) = (task.terms.len(), welcome.memory_bytes);
        Ok(EngineReplica { engine, precision, memory_bytes, layout, terms, steps, parameters, gradients })
    }

    /// Runs `compute` or `evaluate` on the micro-batches.
    fn run<R: serde::de::DeserializeOwned>(&mut self, request: Value, jobs: &[Arc<Job>]) -> Result<R, ComputeError> {
        let steps = &self.steps;
        let mut micro_batches = jobs.iter().map(|job| micro_request(job));
        let mut done = || {
            steps.fetch_add(1, Ordering::Relaxed);
        };
        Ok(self.engine.run(request, &mut micro_batches, &mut done)?)
    }

    fn check_terms(&self, losses: &[u64]) -> Result<(), ComputeError> {
        if losses.len() == self.terms {
            return Ok(());
        }
        let (expected, found) = (self.terms, losses.len());
        Err(ComputeError::Device(format!("it returned {found} losses, but there are {expected} loss terms")))
    }
}

impl Replica for EngineReplica {
    fn precision(&self) -> Dtype {
        self.precision
    }

    fn memory_bytes(&self) -> Option<u64> {
        self.memory_bytes
    }

    fn load(&mut self, parameters: &Arc<Vec<f32>>, count: usize) -> Result<(), ComputeError> {
        let parameters = &parameters[..count];
        self.parameters.write(parameters).map_err(EngineError::Memory)?;
        self.engine.request::<Value>(&json!({"do": "load", "count": parameters.len()}), &[])?;
        Ok(())
    }

    fn gradients(&mut self, jobs: &[Arc<Job>], params: &StepParams) -> Result<GradientSums, ComputeError> {
        let started = Instant::now();
        let trainable = self.layout.trainable_len();
        let mut flat = vec![0.0; trainable + self.terms];
        let (mut compute, mut held_bytes, mut has_overflowed) = (Duration::ZERO, None, false);
        if !jobs.is_empty() {
            let request = json!({
                "do": "compute", "update": params.update, "scales": params.scales, "loss_scale": params.loss_scale,
                "update_key": params.update_key.number(),
            });
            let reply: ComputeReply = self.run(request, jobs)?;
            self.check_terms(&reply.losses)?;
            self.gradients.read(&mut flat[..trainable]).map_err(EngineError::Memory)?;
            for (sum, &loss) in flat[trainable..].iter_mut().zip(&reply.losses) {
                *sum = from_bits(loss) as f32;
            }
            compute = seconds(reply.seconds).min(started.elapsed());
            (held_bytes, has_overflowed) = (reply.held_bytes, reply.overflow && self.precision == Dtype::F16);
        }
        let after = started.elapsed() - compute;
        Ok(GradientSums { flat, has_overflowed, compute, after, held_bytes })
    }

    fn evaluate(&mut self, jobs: &[Arc<Job>]) -> Result<(Totals, Duration), ComputeError> {
        let mut totals = Totals { counts: vec![0; self.terms], losses: vec![0.0; self.terms], ..Totals::default() };
        if jobs.is_empty() {
            return Ok((totals, Duration::ZERO));
        }
        let reply: EvaluateReply = self.run(json!({"do": "evaluate"}), jobs)?;
        self.check_terms(&reply.losses)?;
        for job in jobs {
            totals.samples += job.micro.samples.len() as u64;
            add(&mut totals.counts, job.batch.counts());
        }
        let values = |bits: &[u64]| -> Vec<f64> { bits.iter().map(|&bits| from_bits(bits)).collect() };
        add(&mut totals.losses, &values(&reply.losses));
        add(&mut totals.scores, &values(&reply.scores));
        Ok((totals, seconds(reply.seconds)))
    }

    fn predict(&mut self, _jobs: &[Arc<Job>]) -> Result<Vec<Answer>, ComputeError> {
        Err(ComputeError::Task("engines train and evaluate, but do not predict".into()))
    }
}

/// The request for one micro-batch, and the file with its arrays.
fn micro_request(job: &Job) -> Result<(MicroRequest<'_>, BatchFile<'_>), EngineError> {
    if let Some(CollatedBatch { collated, file }) = job.batch.opaque() {
        return Ok((MicroRequest::of_collated(&job.micro.samples, collated), BatchFile::Borrowed(file)));
    }
    let (file, arrays) = batch_file(&job.batch).map_err(EngineError::Memory)?;
    let request = MicroRequest::of_arrays(&job.micro.samples, job.batch.counts(), &arrays);
    let request = request.map_err(|error| EngineError::Protocol(error.to_string()))?;
    Ok((request, BatchFile::Owned(file)))
}

fn layout_request(layout: &Layout, terms: &[Term]) -> Value {
    let entry = |entry: &hetseq_optim::LayoutEntry| LayoutEntryMessage {
        name: entry.name.clone(),
        shape: entry.shape.clone(),
        offset: entry.range.start,
        trainable: !layout.is_frozen(&entry.name),
    };
    let parameters: Vec<LayoutEntryMessage> = layout.entries().iter().map(entry).collect();
    let term = |term: &Term| TermMessage { name: term.name.clone(), weight: term.weight };
    let terms: Vec<TermMessage> = terms.iter().map(term).collect();
    json!({
        "do": "layout", "parameters": parameters, "length": layout.len(),
        "trainable_length": layout.trainable_len(), "terms": terms,
    })
}

fn shared_floats(count: usize) -> Result<SharedFile, EngineError> {
    SharedFile::create(4 * count as u64).map_err(EngineError::Memory)
}

/// An engine may send any number.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

/// Such as `torch 2.9.1, python 3.12.3`.
fn versions(welcome: &EngineWelcome) -> String {
    let version = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{name} {text}"),
        value => format!("{name} {value}"),
    };
    let all: Vec<String> = welcome.versions.iter().map(version).collect();
    if all.is_empty() { welcome.engine.clone() } else { all.join(", ") }
}

impl From<EngineError> for ComputeError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::OutOfMemory(reason) => ComputeError::OutOfMemory(reason),
            EngineError::Task(reason) => ComputeError::Task(TaskError::Other(reason)),
            error => ComputeError::Device(error.to_string()),
        }
    }
}
