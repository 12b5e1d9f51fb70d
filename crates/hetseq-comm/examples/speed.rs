//! Time of one reduction on loopback: `cargo run --release -p hetseq-comm --example speed`.
//!
//! Arguments: megabytes (440), ranks (2), rounds (5), algorithm (direct or ring), wire format (f32
//! or bf16), `encrypt`; or `mpi` under mpirun (feature `mpi`). A development tool whose ranks are threads; `hetseq bench comm` runs them as
//! processes.

use std::time::Instant;

use hetseq_comm::{
    Algorithm, CommError, Contribution, Group, Identity, Options, RankEnv, RankFlags, Rendezvous, Secret, Shards,
    TransportKind, WireFormat,
};

fn main() {
    let argument = |at: usize, or: usize| std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(or);
    let (megabytes, world, rounds) = (argument(1, 440), argument(2, 2), argument(3, 5));
    let is = |at: usize, word: &str| std::env::args().nth(at).is_some_and(|text| text == word);
    let algorithm = if is(4, "ring") { Algorithm::Ring } else { Algorithm::Direct };
    let wire_format = if is(5, "bf16") { WireFormat::Bf16 { exact_tail: 0 } } else { WireFormat::F32 };
    if std::env::args().any(|text| text == "mpi") {
        let rank_env = RankEnv::find_for_mpi(&RankFlags::default(), &|name| std::env::var(name).ok());
        let result = rank_env.and_then(|rank_env| run(&rank_env, megabytes, rounds, wire_format, algorithm));
        if let Err(error) = result {
            eprintln!("{error}");
        }
        return;
    }
    let rendezvous = Rendezvous::Tcp { host: "127.0.0.1".to_owned(), port: 28_999 };
    std::thread::scope(|scope| {
        for rank in 0..world {
            let rank_env = RankEnv { rank: Some(rank), world, rendezvous: rendezvous.clone(), source: "speed" };
            scope.spawn(move || match run(&rank_env, megabytes, rounds, wire_format, algorithm) {
                Ok(()) => {}
                Err(error) => eprintln!("rank {rank}: {error}"),
            });
        }
    });
}

fn run(
    rank_env: &RankEnv,
    megabytes: usize,
    rounds: usize,
    wire_format: WireFormat,
    algorithm: Algorithm,
) -> Result<(), CommError> {
    let encrypt = std::env::args().any(|text| text == "encrypt");
    let transport = if std::env::args().any(|text| text == "mpi") { TransportKind::Mpi } else { TransportKind::Tcp };
    let options =
        Options { transport, encrypt, secret: Secret::Given("on-this-machine-only".to_owned()), ..Options::default() };
    let mut group = Group::join(rank_env, &Identity::new(), &options)?;
    let mut data = vec![1.0f32; megabytes * 1_000_000 / 4];
    let shards = Shards::even(data.len(), group.world());
    for round in 0..rounds {
        group.barrier()?;
        let start = Instant::now();
        let mut contribution = Some(Contribution::Both { note: Vec::new(), data });
        data = group.all_reduce::<CommError>(&shards, wire_format, algorithm, || Ok(contribution.take()))?.data;
        if group.rank() == 0 {
            eprintln!("round {round}: {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
        }
    }
    group.close();
    Ok(())
}
