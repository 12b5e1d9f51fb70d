//! Ranks over MPI (`comm.transport`), started by Open MPI's `mpirun`. A build without the feature
//! says so, and is not linked to MPI.

use crate::cluster::codes;
use crate::reference::shipped;
use crate::run_dir::RunDir;

#[cfg(not(feature = "mpi"))]
#[test]
fn a_build_without_mpi_says_how_to_build_with_it() {
    let ended = shipped(&RunDir::new(), 3).set("comm.transport", "mpi").run();
    assert_eq!(codes(&ended), [Some(2)], "{ended:#?}");
    assert!(ended[0].stderr.contains("cargo build --release --features mpi"), "{ended:#?}");
}

#[cfg(all(target_os = "linux", not(feature = "mpi")))]
#[test]
fn a_build_without_mpi_is_not_linked_to_it() {
    let ldd = std::process::Command::new("ldd").arg(env!("CARGO_BIN_EXE_hetseq")).output().unwrap();
    let libraries = String::from_utf8_lossy(&ldd.stdout);
    assert!(libraries.contains("libc.so") && !libraries.contains("libmpi"), "{libraries}");
}

#[cfg(feature = "mpi")]
mod launched {
    use std::time::Duration;

    use super::*;
    use crate::bert;
    use crate::cluster::{Job, send};

    const WEIGHTS: [u32; 4] = [7, 2, 1, 1];

    /// Trains over TCP and over MPI, and compares. In both runs, ranks compare their replicas bit by
    /// bit after every update.
    fn assert_same_losses(name: &str, updates: u64, job: impl Fn(&RunDir) -> Job) {
        let [tcp, mpi] = [RunDir::new(), RunDir::new()];
        job(&tcp).succeed();
        job(&mpi).set("comm.transport", "mpi").under_mpirun().succeed();
        let (expected, found) = (tcp.losses(), mpi.losses());
        assert!(expected.keys().copied().eq(1..=updates) && found.keys().eq(expected.keys()), "{name}: {found:?}");
        for (update, loss) in &found {
            let off = (loss / expected[update] - 1.0).abs();
            assert!(off <= 1e-6, "{name}: the loss of update {update} is off by {off:e}");
        }
        assert_eq!(mpi.checksums(), tcp.checksums(), "{name}");
    }

    #[test]
    #[ignore = "needs mpirun"]
    fn losses_are_those_of_tcp() {
        for world in 2..=4 {
            let mnist = |dir: &RunDir| shipped(dir, 30).weights(&WEIGHTS[..world]);
            assert_same_losses(&format!("MNIST, {world} ranks"), 30, mnist);
        }
        let bf16 = |dir: &RunDir| shipped(dir, 20).weights(&WEIGHTS[..3]).set("comm.wire_dtype", "bf16");
        assert_same_losses("MNIST, bf16", 20, bf16);
        let ring = |dir: &RunDir| shipped(dir, 20).weights(&WEIGHTS[..3]).set("comm.algorithm", "ring");
        assert_same_losses("MNIST, ring", 20, ring);
        let bert = |dir: &RunDir| bert::train(dir, 10).set("run.checksum_every", 1).weights(&WEIGHTS[..3]);
        assert_same_losses("BERT, 3 ranks", 10, bert);
    }

    #[test]
    #[ignore = "needs mpirun"]
    fn a_run_resumes_over_the_other_transport() {
        let reference = RunDir::new();
        let job = |dir: &RunDir, updates| shipped(dir, updates).weights(&WEIGHTS[..2]);
        job(&reference, 30).succeed();
        let dir = RunDir::new();
        job(&dir, 10).set("comm.transport", "mpi").under_mpirun().succeed();
        job(&dir, 20).succeed();
        job(&dir, 30).set("comm.transport", "mpi").under_mpirun().succeed();
        assert_eq!(dir.starts(), [(2, 0), (2, 10), (2, 20)]);
        assert_eq!(dir.losses(), reference.losses());
    }

    #[test]
    #[ignore = "needs mpirun"]
    fn a_dead_rank_ends_all_with_a_message_and_the_run_resumes() {
        let [dir, reference] = [RunDir::new(), RunDir::new()];
        let job =
            |dir: &RunDir| shipped(dir, 40).ranks(3).set("batch.split", "equal").set("checkpoint.every", "5 updates");
        job(&reference).succeed();
        let slow = job(&dir).set("emulate.slowdown", "[8, 8, 8]");
        let mut cluster = slow.set("comm.transport", "mpi").under_mpirun().start();
        cluster.wait_for_update(&dir, 8);
        let ranks = cluster.all_children(0);
        assert_eq!(ranks.len(), 3);
        send("KILL", ranks[1]);
        let ended = cluster.wait(Duration::from_secs(30));
        assert_ne!(codes(&ended), [Some(0)]);
        let stderr = &ended[0].stderr;
        assert!(stderr.contains("since SIGTERM, rank 1 did not answer"), "{stderr}");
        assert!(stderr.contains("the same command resumes from the last checkpoint"), "{stderr}");
        job(&dir).set("comm.transport", "mpi").under_mpirun().succeed();
        assert_eq!(dir.losses(), reference.losses());
    }

    #[test]
    #[ignore = "needs mpirun"]
    fn a_signal_to_mpirun_saves() {
        let dir = RunDir::new();
        let job = shipped(&dir, 60).ranks(2).set("batch.split", "equal").set("emulate.slowdown", "[8, 8]");
        let mut cluster = job.set("comm.transport", "mpi").under_mpirun().start();
        cluster.wait_for_update(&dir, 5);
        cluster.signal(0, "USR1");
        let ended = cluster.wait(Duration::from_secs(30));
        assert_eq!(codes(&ended), [Some(75)], "{ended:#?}");
        let (last, outcome) = dir.end();
        assert_eq!((outcome.as_str(), dir.link("last")), ("stopped", format!("step-{last}")));
    }

    #[test]
    #[ignore = "needs mpirun"]
    fn ranks_that_differ_and_failures_are_named() {
        let ended = shipped(&RunDir::new(), 3)
            .ranks(2)
            .set_on(1, "optim.lr", "0.5")
            .set("comm.transport", "mpi")
            .under_mpirun()
            .run();
        assert_eq!(codes(&ended), [Some(2)], "{ended:#?}");
        assert!(ended[0].stderr.contains("optim.lr: 0.005 here, 0.5 on rank 1"), "{ended:#?}");
        // Ranks that a failure of another one ends.
        let job = shipped(&RunDir::new(), 9).ranks(2).set("batch.split", "equal");
        let failing = job.set("emulate.lost", "[{ rank = 1, device = \"cpu:0\", update = 4 }]");
        let ended = failing.set("comm.transport", "mpi").under_mpirun().run();
        assert_eq!(codes(&ended), [Some(1)], "{ended:#?}");
        assert!(ended[0].stderr.contains("rank 1") && ended[0].stderr.contains("cpu:0"), "{ended:#?}");
    }

    #[test]
    #[ignore = "needs mpirun"]
    fn without_mpirun_the_program_works_over_tcp() {
        shipped(&RunDir::new(), 3).ranks(2).succeed();
        let ended = shipped(&RunDir::new(), 3).set("comm.transport", "mpi").run();
        assert_eq!(codes(&ended), [Some(2)], "{ended:#?}");
        assert!(ended[0].stderr.contains("mpirun -n 2 hetseq train"), "{ended:#?}");
    }

    #[test]
    #[ignore = "needs mpirun"]
    fn sums_are_verified() {
        let bench = Job::new(["bench", "comm", "--transport", "mpi", "--mb", "0.01,1,25", "--rounds", "3", "--json"]);
        let bench = bench.args(["--wire-dtype", "f32,bf16"]).ranks(3);
        let printed = bench.under_mpirun().succeed();
        assert_eq!(printed.lines().count(), 6, "{printed}");
        assert!(
            printed.lines().all(|line| line.contains("\"world\":3") && line.contains("\"verified\":true")),
            "{printed}"
        );
    }
}
