//! How long one reduction takes on loopback: `cargo run --release -p hetseq-comm --example speed`.
//!
//! Arguments: megabytes (440), ranks (2), rounds (5), route (direct or ring), wire (f32 or bf16), `encrypt`, `late`. A
//! development aid whose ranks are threads; `hetseq bench comm` has them as processes.

use std::time::Instant;

use hetseq_comm::{Contribution, Group, Identity, Options, Place, Rendezvous, Route, Secret, Shards, Wire};

fn main() {
    let argument = |at: usize, or: usize| std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(or);
    let (megabytes, world, rounds) = (argument(1, 440), argument(2, 2), argument(3, 5));
    let is = |at: usize, word: &str| std::env::args().nth(at).is_some_and(|text| text == word);
    let route = if is(4, "ring") { Route::Ring } else { Route::Direct };
    let wire = if is(5, "bf16") { Wire::Bf16 { exact_tail: 0 } } else { Wire::F32 };
    let rendezvous = Rendezvous::Tcp { host: "127.0.0.1".to_owned(), port: 28_999 };
    std::thread::scope(|scope| {
        for rank in 0..world {
            let place = Place { rank: Some(rank), world, rendezvous: rendezvous.clone(), source: "speed" };
            scope.spawn(move || match run(&place, megabytes, rounds, wire, route) {
                Ok(()) => {}
                Err(error) => eprintln!("rank {rank}: {error}"),
            });
        }
    });
}

fn run(place: &Place, megabytes: usize, rounds: usize, wire: Wire, route: Route) -> Result<(), hetseq_comm::CommError> {
    let [encrypt, late] = ["encrypt", "late"].map(|word| std::env::args().any(|text| text == word));
    let options = Options { encrypt, secret: Secret::Given("on-this-machine-only".to_owned()), ..Options::default() };
    let mut group = Group::join(place, &Identity::new(), &options)?;
    let mut data = vec![1.0f32; megabytes * 1_000_000 / 4];
    let shards = Shards::even(data.len(), group.world());
    for round in 0..rounds {
        group.barrier()?;
        let start = Instant::now();
        if late {
            let mut mine = Some(Contribution::Both { note: Vec::new(), data });
            data = group.all_reduce_late::<hetseq_comm::CommError>(&shards, wire, route, || Ok(mine.take()))?.data;
        } else {
            group.all_reduce(&mut data, &shards, wire, route)?;
        }
        if group.rank() == 0 {
            eprintln!("round {round}: {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
        }
    }
    group.close();
    Ok(())
}
