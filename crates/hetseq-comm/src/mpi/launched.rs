//! Joining over MPI: the launcher has started the ranks and knows all of them, so they only compare
//! what they run. Called by `Group::join`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::buffers::Pool;
use crate::error::{CommError, shown_line};
use crate::identity::Identity;
use crate::mesh::Mesh;
use crate::options::Options;
use crate::rank_env::RankEnv;
use crate::reduce;
use crate::rendezvous::differences_from_rank0;
use crate::transport::LinkEnd;

use super::MpiTransport;
use super::library::MpiLibrary;

/// Longer names are cut.
const NAME_BYTES: usize = 64;
/// How long a rank whose peers differ from it waits until they have noticed, too.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);

/// A rank's description of itself and of what it runs.
#[derive(Serialize, Deserialize)]
struct LaunchedRank {
    name: String,
    identity: Identity,
    /// Rank 0's becomes the generation.
    random: u64,
}

/// Initializes MPI and compares all ranks; `None` for a single rank. The rank and the world size are
/// those of MPI; `rank_env` must agree with them.
pub(crate) fn join(rank_env: &RankEnv, identity: &Identity, options: &Options) -> Result<Option<Mesh>, CommError> {
    if options.encrypt {
        let what = "traffic over MPI cannot be encrypted; use comm.transport = \"tcp\", or leave out comm.encrypt";
        return Err(CommError::Misuse { operation: "join", what: what.to_owned() });
    }
    // Not left to MPI: without a launcher Open MPI tries to start one, and may end the process.
    if !rank_env.is_launched() {
        return Err(CommError::NotLaunched);
    }
    let mut library = MpiLibrary::start().map_err(|reason| CommError::Mpi { reason })?;
    let (rank, world) = (library.rank, library.world);
    if world == 1 {
        library.finalize();
    }
    check_launcher(rank_env, rank, world)?;
    if world == 1 {
        return Ok(None);
    }
    let pool = Pool::new(world);
    let transport = MpiTransport::new(library, &pool, &options.terminated, options.silence)?;
    let hosts = (0..world).map(|rank| format!("process {rank} of MPI")).collect();
    let mut mesh = Mesh::new(rank, 0, hosts, Box::new(transport), pool, options.join);
    "the start".clone_into(&mut mesh.context);
    let ranks = exchange(&mut mesh, identity, options)?;
    mesh.generation = ranks[0].random;
    mesh.first_generation = mesh.generation;
    mesh.hosts = ranks.iter().map(|rank| rank.name.clone()).collect();
    mesh.progress = options.progress;
    let others: Vec<(&str, &Identity)> = ranks.iter().map(|rank| (rank.name.as_str(), &rank.identity)).collect();
    let differences = differences_from_rank0(rank, &others);
    if !differences.is_empty() {
        mesh.progress = GOODBYE_TIMEOUT;
        mesh.leave(LinkEnd::Goodbye);
        return Err(CommError::Differ { differences });
    }
    tracing::info!("rank {rank} of {world}: all ranks are connected over MPI ({})", MpiLibrary::version());
    Ok(Some(mesh))
}

/// Exchanges the descriptions of all ranks; in rank order.
fn exchange(mesh: &mut Mesh, identity: &Identity, options: &Options) -> Result<Vec<LaunchedRank>, CommError> {
    let mut random = [0; 8];
    let failed = |reason| CommError::System { what: "generate a random number", reason };
    getrandom::fill(&mut random).map_err(|error| failed(std::io::Error::other(error.to_string())))?;
    let name = shown_line(&options.shown_name(), NAME_BYTES);
    let own = LaunchedRank { name, identity: identity.clone(), random: u64::from_le_bytes(random) };
    let invalid = |detail: String| CommError::Rendezvous { with: "the ranks of this MPI job".to_owned(), detail };
    let own = postcard::to_allocvec(&own).map_err(|error| invalid(error.to_string()))?;
    let all = reduce::all_gather_bytes(mesh, &own)?;
    let parse = |(rank, bytes): (usize, &Vec<u8>)| {
        let parsed: LaunchedRank =
            postcard::from_bytes(bytes).map_err(|error| invalid(format!("rank {rank} sent invalid data: {error}")))?;
        Ok(LaunchedRank { name: shown_line(&parsed.name, NAME_BYTES), ..parsed })
    };
    all.iter().enumerate().map(parse).collect()
}

/// Checks that MPI sees the ranks that the launcher's variables speak of.
fn check_launcher(rank_env: &RankEnv, rank: usize, world: usize) -> Result<(), CommError> {
    match rank_env.rank {
        Some(says) if (says, rank_env.world) != (rank, world) => {
            let (given_by, of, library) = (rank_env.source, rank_env.world, MpiLibrary::version());
            Err(CommError::OtherLauncher { given_by, says, of, rank, world, library })
        }
        _ => Ok(()),
    }
}
