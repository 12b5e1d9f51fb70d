//! The rank of this process, the world size and the rendezvous: from flags or the variables of a
//! launcher.
//!
//! Pure: the environment is an argument. It opens no socket and resolves no name. The CLI calls it
//! before anything else; [`crate::Group::join`] takes the result.
//!
//! The first of these that is present decides:
//!
//! 1. **Flags** `--distributed-init-method`, `--distributed-world-size`, `--distributed-rank`. A
//!    missing world size or rank is taken from the variables below, a missing address from
//!    `MASTER_ADDR` and `MASTER_PORT`. `env://` means: as if no flags were given. With
//!    `file:///shared/dir` no rank is needed: rank 0 assigns the numbers.
//! 2. **`RANK`**, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, as torchrun sets them.
//! 3. **`OMPI_COMM_WORLD_RANK`** and `OMPI_COMM_WORLD_SIZE` of Open MPI, or **`PMI_RANK`**,
//!    `PMI_SIZE` and `MPI_LOCALNRANKS` of MPICH and its relatives. The address is `MASTER_ADDR`,
//!    else this machine if all ranks are on it; the port is `MASTER_PORT`, else derived from the
//!    job's name, which only Open MPI sets. Before Slurm, because `mpirun` inside a Slurm job starts
//!    its ranks with Slurm's variables set.
//! 4. **`SLURM_PROCID`** and `SLURM_NTASKS` of a step (`SLURM_STEP_ID`), that is, under `srun`.
//!    The address is `MASTER_ADDR`, else the first host of `SLURM_STEP_NODELIST` or
//!    `SLURM_JOB_NODELIST`; the port is `MASTER_PORT`, else derived from the job's number. A batch
//!    script, or a shell of `salloc`, may have `SLURM_PROCID` 0 too, but it is a single process.
//! 5. Otherwise this is a single process.
//!
//! For ranks that exchange data over MPI (`comm.transport`) only launchers count, and there is no
//! address: MPI itself knows the ranks, and the variables are compared with it.

mod address;
mod hostlist;

use std::fmt;
use std::path::PathBuf;

use crate::error::CommError;

/// How the ranks find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// A single process.
    Alone,
    /// Rank 0 listens on this port; `host` is a name or an address without brackets.
    Tcp { host: String, port: u16 },
    /// The ranks share this directory and find each other by files in it.
    Directory(PathBuf),
    /// MPI connects the ranks.
    Mpi,
}

/// Prints it as users write it.
impl fmt::Display for Rendezvous {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rendezvous::Alone => out.write_str("nowhere"),
            Rendezvous::Tcp { host, port } if host.contains(':') => write!(out, "tcp://[{host}]:{port}"),
            Rendezvous::Tcp { host, port } => write!(out, "tcp://{host}:{port}"),
            Rendezvous::Mpi => out.write_str("MPI"),
            Rendezvous::Directory(path) => write!(out, "file://{}", path.display()),
        }
    }
}

/// The rank of this process in the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEnv {
    /// `None` if rank 0 assigns the numbers, which it can with a rendezvous in a directory.
    pub rank: Option<usize>,
    pub world: usize,
    pub rendezvous: Rendezvous,
    /// The flags or variables it came from, for messages.
    pub source: &'static str,
}

/// The launch flags about the rank, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankFlags {
    /// `--distributed-init-method`
    pub init_method: Option<String>,
    /// `--distributed-world-size`
    pub world_size: Option<usize>,
    /// `--distributed-rank`
    pub rank: Option<usize>,
}

const FLAGS: &str = "the --distributed flags";
const TORCHRUN: &str = "RANK and WORLD_SIZE";
const SLURM: &str = "SLURM_PROCID and SLURM_NTASKS";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE";
const MPICH: &str = "PMI_RANK and PMI_SIZE";
const OTHER_LAUNCHER: &str = "the variables of a launcher";
/// Variables that show that a launcher of MPI has started this process. Only MPI knows the rest.
const UNNUMBERED: [&str; 4] = ["PMIX_RANK", "PMI_ID", "PALS_RANKID", "FLUX_TASK_RANK"];
const NOTHING: &str = "no launch flags or variables";

impl RankEnv {
    /// Finds the rank of this process; contradictory or incomplete input is an error that names it.
    pub fn find(flags: &RankFlags, env: &dyn Fn(&str) -> Option<String>) -> Result<RankEnv, CommError> {
        let env = Env(env);
        let from_env = flags.init_method.as_deref().map(str::trim) == Some("env://");
        let no_numbers = flags.world_size.is_none() && flags.rank.is_none();
        if no_numbers && (flags.init_method.is_none() || from_env) {
            return from_variables(&env);
        }
        from_flags(flags, from_env, &env)
    }

    /// Finds the rank of a process that exchanges data over MPI; a single process if no launcher
    /// has set any variable, and no rank if only MPI knows it.
    pub fn find_for_mpi(flags: &RankFlags, env: &dyn Fn(&str) -> Option<String>) -> Result<RankEnv, CommError> {
        if *flags != RankFlags::default() {
            return problem("over MPI the launcher says which rank this is: leave out the --distributed flags");
        }
        let env = Env(env);
        let is_srun = srun_step(&env).is_some();
        let launchers = [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", OPEN_MPI),
            ("PMI_RANK", "PMI_SIZE", MPICH),
            ("SLURM_PROCID", "SLURM_NTASKS", SLURM),
        ];
        for (rank_name, world_name, source) in launchers {
            if let (Some(rank), Some(world)) = (env.number(rank_name)?, env.number(world_name)?)
                && (source != SLURM || is_srun)
            {
                check_range(rank, world, rank_name, world_name)?;
                return Ok(RankEnv { rank: Some(rank), world, rendezvous: Rendezvous::Mpi, source });
            }
        }
        if UNNUMBERED.iter().any(|name| env.text(name).is_some()) {
            return Ok(RankEnv { rank: None, world: 1, rendezvous: Rendezvous::Mpi, source: OTHER_LAUNCHER });
        }
        Ok(RankEnv::alone(NOTHING))
    }

    /// Returns whether flags or a launcher decided, and not their absence.
    #[cfg(feature = "mpi")]
    pub(crate) fn is_launched(&self) -> bool {
        self.source != NOTHING
    }

    fn alone(source: &'static str) -> RankEnv {
        RankEnv { rank: Some(0), world: 1, rendezvous: Rendezvous::Alone, source }
    }
}

fn problem<T>(problem: impl Into<String>) -> Result<T, CommError> {
    Err(CommError::RankEnv { problem: problem.into() })
}

/// The environment; an empty variable counts as not set.
struct Env<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Env<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn number(&self, name: &str) -> Result<Option<usize>, CommError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => problem(format!("{name} is {text:?}, which is not an integer")),
        }
    }

    fn master_host(&self) -> Result<Option<String>, CommError> {
        let Some(text) = self.text("MASTER_ADDR") else { return Ok(None) };
        address::host(&text).map(Some).or_else(|why| problem(format!("MASTER_ADDR is {text:?}: {why}")))
    }

    fn master_port(&self) -> Result<Option<u16>, CommError> {
        let Some(text) = self.text("MASTER_PORT") else { return Ok(None) };
        address::port(&text).map(Some).or_else(|why| problem(format!("MASTER_PORT is {text:?}: {why}")))
    }

    /// Returns the address that the user set, for launchers that give none.
    fn master(&self, why: &str) -> Result<Rendezvous, CommError> {
        match (self.master_host()?, self.master_port()?) {
            (Some(host), Some(port)) => Ok(Rendezvous::Tcp { host, port }),
            (None, _) => {
                problem(format!("{why}, but MASTER_ADDR is not set; set it to the name or address of rank 0's machine"))
            }
            (_, None) => {
                problem(format!("{why}, but MASTER_PORT is not set; set it to a free port on rank 0's machine"))
            }
        }
    }
}

fn from_flags(flags: &RankFlags, from_env: bool, env: &Env<'_>) -> Result<RankEnv, CommError> {
    const WORLD: &str = "--distributed-world-size";
    const RANK: &str = "--distributed-rank";
    let world = match flags.world_size {
        Some(world) => world,
        None => numbers_from_env(env)?
            .1
            .map_or_else(|| problem(format!("{WORLD} is missing; set it to the number of ranks")), Ok)?,
    };
    let rendezvous = match &flags.init_method {
        // The address is checked even if a single process does not need it: a typo should show now
        // and not when a second rank is added.
        Some(method) if !from_env => match address::rendezvous(method) {
            Ok(rendezvous) => rendezvous,
            Err(why) => return problem(format!("--distributed-init-method is {method:?}: {why}")),
        },
        _ if world == 1 => Rendezvous::Alone,
        _ => env.master(&format!("{WORLD} is {world} without --distributed-init-method tcp://host:port"))?,
    };
    let rank = match flags.rank {
        Some(rank) => Some(rank),
        None if world == 1 => Some(0),
        None => numbers_from_env(env)?.0,
    };
    match (rank, &rendezvous) {
        (Some(rank), _) => check_range(rank, world, RANK, WORLD)?,
        (None, Rendezvous::Directory(_)) => check_range(0, world, RANK, WORLD)?,
        (None, _) => return problem(format!("{RANK} is missing; give every process its own number from 0")),
    }
    let rendezvous = if world == 1 { Rendezvous::Alone } else { rendezvous };
    Ok(RankEnv { rank, world, rendezvous, source: FLAGS })
}

/// Returns rank and world size from the launcher that set them.
fn numbers_from_env(env: &Env<'_>) -> Result<(Option<usize>, Option<usize>), CommError> {
    for (rank, world) in [
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ] {
        if let Some(number) = env.number(rank)? {
            return Ok((Some(number), env.number(world)?));
        }
    }
    Ok((None, env.number("WORLD_SIZE")?))
}

fn from_variables(env: &Env<'_>) -> Result<RankEnv, CommError> {
    if let Some(rank) = env.number("RANK")? {
        return from_torchrun(rank, env);
    }
    if let Some(rank) = env.number("OMPI_COMM_WORLD_RANK")? {
        let names = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"];
        return from_mpirun(rank, names, OPEN_MPI, env);
    }
    // `srun` may set the first two as well; then Slurm's own variables say more.
    if let (Some(rank), Some(_)) = (env.number("PMI_RANK")?, env.text("MPI_LOCALNRANKS")) {
        return from_mpirun(rank, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"], MPICH, env);
    }
    if let Some(rank) = env.number("SLURM_PROCID")? {
        return match srun_step(env) {
            Some(step) => from_slurm(rank, step, env),
            None => Ok(RankEnv::alone(SLURM)),
        };
    }
    match env.number("WORLD_SIZE")? {
        None | Some(1) => Ok(RankEnv::alone(NOTHING)),
        Some(world) => problem(format!("WORLD_SIZE is {world} but RANK is not set; set both or none")),
    }
}

/// The step that `srun` started. Slurm numbers other steps from the end of 32 bits: the batch script,
/// and the shell of `salloc`, which runs once, whatever the number of tasks is.
fn srun_step(env: &Env<'_>) -> Option<String> {
    const FIRST_SPECIAL: u64 = 0xffff_fff0;
    env.text("SLURM_STEP_ID").filter(|step| step.parse::<u64>().map_or(true, |step| step < FIRST_SPECIAL))
}

/// The number of Slurm tasks of which this process uses only one, because `srun` did not start it.
/// `None` if there is only one, or if something else says which rank this is.
pub fn unused_slurm_tasks(env: &dyn Fn(&str) -> Option<String>) -> Option<usize> {
    let env = Env(env);
    let is_launched = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"].iter().any(|name| env.text(name).is_some());
    let tasks = env.number("SLURM_NTASKS").ok().flatten().filter(|&tasks| tasks > 1)?;
    (!is_launched && srun_step(&env).is_none()).then_some(tasks)
}

fn from_torchrun(rank: usize, env: &Env<'_>) -> Result<RankEnv, CommError> {
    let Some(world) = env.number("WORLD_SIZE")? else {
        return problem(format!("RANK is {rank} but WORLD_SIZE is not set; set both or none"));
    };
    check_range(rank, world, "RANK", "WORLD_SIZE")?;
    if world == 1 {
        return Ok(RankEnv::alone(TORCHRUN));
    }
    let rendezvous = env.master(&format!("WORLD_SIZE is {world}"))?;
    Ok(RankEnv { rank: Some(rank), world, rendezvous, source: TORCHRUN })
}

fn from_slurm(rank: usize, step: String, env: &Env<'_>) -> Result<RankEnv, CommError> {
    let Some(world) = env.number("SLURM_NTASKS")? else {
        return match rank {
            0 => Ok(RankEnv::alone(SLURM)),
            _ => problem(format!("SLURM_PROCID is {rank} but SLURM_NTASKS is not set")),
        };
    };
    check_range(rank, world, "SLURM_PROCID", "SLURM_NTASKS")?;
    check_same_world(world, "SLURM_NTASKS", env)?;
    if world == 1 {
        return Ok(RankEnv::alone(SLURM));
    }
    let host = match env.master_host()? {
        Some(host) => host,
        None => first_slurm_host(env)?,
    };
    let port = match (env.master_port()?, env.text("SLURM_JOB_ID")) {
        (Some(port), _) => port,
        // The step too: steps of one job may run side by side.
        (None, Some(job)) => address::port_of_job(&format!("slurm {job}.{step}")),
        (None, None) => {
            return problem("SLURM_JOB_ID is not set, so no port can be derived from it; set MASTER_PORT");
        }
    };
    Ok(RankEnv { rank: Some(rank), world, rendezvous: Rendezvous::Tcp { host, port }, source: SLURM })
}

fn first_slurm_host(env: &Env<'_>) -> Result<String, CommError> {
    for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"] {
        if let Some(list) = env.text(name) {
            return hostlist::first(&list)
                .or_else(|why| problem(format!("{name} is {list:?}: {why}; set MASTER_ADDR instead")));
        }
    }
    problem("neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set; set MASTER_ADDR to rank 0's host")
}

/// `names` are the variables of the rank, the world size, and the number of ranks on this machine.
fn from_mpirun(
    rank: usize,
    names: [&'static str; 3],
    source: &'static str,
    env: &Env<'_>,
) -> Result<RankEnv, CommError> {
    let [rank_name, world_name, local_name] = names;
    let Some(world) = env.number(world_name)? else {
        return problem(format!("{rank_name} is {rank} but {world_name} is not set"));
    };
    check_range(rank, world, rank_name, world_name)?;
    check_same_world(world, world_name, env)?;
    if world == 1 {
        return Ok(RankEnv::alone(source));
    }
    let host = match env.master_host()? {
        Some(host) => host,
        None if env.number(local_name)? == Some(world) => "127.0.0.1".to_owned(),
        None => {
            return problem(
                "mpirun started ranks on several machines but MASTER_ADDR is not set; pass it on with \
                 mpirun -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=<free port>, or use MPI itself \
                 (comm.transport = \"mpi\")",
            );
        }
    };
    let job = env.text("PMIX_NAMESPACE").or_else(|| env.text("OMPI_MCA_ess_base_jobid"));
    let port = match (env.master_port()?, job) {
        (Some(port), _) => port,
        (None, Some(job)) => address::port_of_job(&format!("mpi {job}")),
        (None, None) => {
            return problem(
                "mpirun set no job name to derive a port from; set MASTER_PORT to a free port, or use MPI itself \
                 (comm.transport = \"mpi\")",
            );
        }
    };
    Ok(RankEnv { rank: Some(rank), world, rendezvous: Rendezvous::Tcp { host, port }, source })
}

fn check_range(rank: usize, world: usize, rank_name: &str, world_name: &str) -> Result<(), CommError> {
    if world == 0 {
        return problem(format!("{world_name} is 0; there must be at least one rank"));
    }
    if rank >= world {
        return problem(format!("{rank_name} is {rank} but {world_name} is {world}; ranks go from 0 to {}", world - 1));
    }
    Ok(())
}

/// Rejects a `WORLD_SIZE` that differs: it must not be ignored silently.
fn check_same_world(world: usize, name: &str, env: &Env<'_>) -> Result<(), CommError> {
    match env.number("WORLD_SIZE")? {
        Some(other) if other != world => {
            problem(format!("{name} is {world} but WORLD_SIZE is {other}; unset WORLD_SIZE or correct it"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
