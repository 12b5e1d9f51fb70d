//! How long one reduction takes on loopback: `cargo run --release -p hetseq-comm --example speed`.
//!
//! Arguments: megabytes (440), ranks (2), rounds (5), and 1 to encrypt (0). A development aid, not a benchmark of a
//! network.

use std::time::Instant;

use hetseq_comm::{Group, Identity, Options, Place, Rendezvous, Secret, Shards};

fn main() {
    let argument = |at: usize, or: usize| std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(or);
    let (megabytes, world, rounds) = (argument(1, 440), argument(2, 2), argument(3, 5));
    let encrypt = argument(4, 0) == 1;
    let rendezvous = Rendezvous::Tcp { host: "127.0.0.1".to_owned(), port: 28_999 };
    std::thread::scope(|scope| {
        for rank in 0..world {
            let place = Place { rank: Some(rank), world, rendezvous: rendezvous.clone(), source: "speed" };
            scope.spawn(move || match run(&place, megabytes, rounds, encrypt) {
                Ok(()) => {}
                Err(error) => eprintln!("rank {rank}: {error}"),
            });
        }
    });
}

fn run(place: &Place, megabytes: usize, rounds: usize, encrypt: bool) -> Result<(), hetseq_comm::CommError> {
    let options = Options { encrypt, secret: Secret::Given("speed".to_owned()), ..Options::default() };
    let mut group = Group::join(place, &Identity::new(), &options)?;
    let mut data = vec![1.0f32; megabytes * 1_000_000 / 4];
    let shards = Shards::even(data.len(), group.world());
    for round in 0..rounds {
        group.barrier()?;
        let start = Instant::now();
        group.reduce_scatter(&mut data, &shards)?;
        let scattered = start.elapsed();
        group.all_gather(&mut data, &shards)?;
        if group.rank() == 0 {
            eprintln!(
                "round {round}: reduce_scatter {} ms, both {} ms",
                scattered.as_millis(),
                start.elapsed().as_millis()
            );
        }
    }
    group.close();
    Ok(())
}
