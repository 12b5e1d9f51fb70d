//! Strangers at rank 0's port, while the ranks meet and while they train: none of them gets in, the log names them in a
//! few lines, and the run computes bit for bit what it computes undisturbed.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, Ended, Job, codes};
use crate::reference::shipped;
use crate::run_dir::RunDir;

const HERE: &str = "127.0.0.1";
const UPDATES: u64 = 25;
/// Far below what waiting for each stranger's time to run out would take.
const SOON: Duration = Duration::from_secs(60);

fn train(dir: &RunDir, encrypt: bool) -> Job {
    let job = shipped(dir, UPDATES).ranks(2).set("batch.split", "equal").set("comm.encrypt", encrypt);
    job.env_on(0, "HETSEQ_SECRET", "squirrel-of-the-park").env_on(1, "HETSEQ_SECRET", "squirrel-of-the-park")
}

/// The losses of an undisturbed run, and what rank 1 said to rank 0 at its beginning.
fn undisturbed(encrypt: bool) -> (BTreeMap<u64, f64>, Vec<u8>) {
    let dir = RunDir::new();
    let job = train(&dir, encrypt);
    let (port, said) = eavesdrop(job.port());
    job.env_on(1, "MASTER_PORT", &port.to_string()).succeed();
    let said = said.lock().unwrap().clone();
    assert!(said.starts_with(b"HSQF"));
    (dir.losses(), said)
}

/// Enough for a whole handshake.
const KEPT_BYTES: usize = 4000;

/// Passes on what comes to the returned port, and keeps the first of what the dialers say.
fn eavesdrop(to: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let said = Arc::new(Mutex::new(Vec::new()));
    let kept = said.clone();
    let pass_on = |mut from: TcpStream, mut to: TcpStream, keep: Option<Arc<Mutex<Vec<u8>>>>| {
        spawn(move || {
            let mut piece = vec![0; 1 << 16];
            while let Ok(count @ 1..) = from.read(&mut piece) {
                if let Some(keep) = &keep {
                    let mut kept = keep.lock().unwrap();
                    let room = KEPT_BYTES - kept.len().min(KEPT_BYTES);
                    kept.extend(&piece[..count.min(room)]);
                }
                if to.write_all(&piece[..count]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Write);
        })
    };
    spawn(move || {
        for dialer in listener.incoming().map_while(Result::ok) {
            // Rank 0 may not be there yet: the dialer tries again.
            let Ok(answerer) = TcpStream::connect((HERE, to)) else { continue };
            pass_on(dialer.try_clone().unwrap(), answerer.try_clone().unwrap(), Some(kept.clone()));
            pass_on(answerer, dialer, None);
        }
    });
    (port, said)
}

/// Connects as soon as somebody listens.
fn knock(port: u16) -> TcpStream {
    let started = Instant::now();
    loop {
        match TcpStream::connect((HERE, port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(started.elapsed() < SOON, "{error}"),
        }
        sleep(Duration::from_millis(10));
    }
}

/// A thousand connections at once that say nothing, from processes of their own: each may open only so many.
struct Crowd(Vec<Child>);

impl Crowd {
    fn come(port: u16) -> Crowd {
        let open = format!("for i in {{1..250}}; do exec {{fd}}<>/dev/tcp/{HERE}/{port}; done; exec sleep 60");
        let come = |_| Command::new("bash").args(["-c", &open]).stderr(Stdio::null()).spawn().unwrap();
        Crowd((0..4).map(come).collect())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// Everything that a stranger may try; what is returned stays until it is dropped.
fn attack(job: &Job, said: &[u8]) -> (Crowd, Vec<TcpStream>) {
    let port = job.port();
    let silent = vec![knock(port)];
    let send = |bytes: &[u8]| {
        let mut stream = knock(port);
        // It may be cut off before it has said all.
        let _ = stream.write_all(bytes);
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    let random: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    assert!(send(&random).is_empty(), "random bytes are not answered");
    let mut huge = said[..36].to_vec();
    huge[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    let checksum = crc32c::crc32c(&huge[..32]);
    huge[32..].copy_from_slice(&checksum.to_le_bytes());
    assert!(send(&huge).is_empty(), "a promise of 4 GiB is not waited for");
    // Rank 0 greets back and draws a nonce, for which what was recorded holds no proof.
    let answer = send(said);
    assert!(answer.starts_with(b"HSQF"), "a replay gets a greeting and a refusal");
    let mut stranger = Cluster::new();
    job.clone().env_on(1, "HETSEQ_SECRET", "badger-of-the-wood").start_rank(1, &mut stranger);
    let ended = stranger.wait(SOON).remove(0);
    assert_eq!(ended.code(), Some(1), "{ended:#?}");
    assert!(ended.stderr.contains("refused this rank: the shared secrets differ"), "{}", ended.stderr);
    (Crowd::come(port), silent)
}

fn assert_named(rank_0: &Ended) {
    let log = &rank_0.stderr;
    for part in [
        "turned away 127.0.0.1:",
        "not the hetseq protocol",
        "a frame or message of 4294967295 bytes, the limit is 2048",
        "the shared secrets differ",
        // The replay and the process with a wrong secret are of one kind from one address: a line and a count.
        "1 from 127.0.0.1 (a wrong secret)",
        "there were too many connections at once",
        "from 127.0.0.1 (too many at once)",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    let lines = log.lines().filter(|line| line.contains("turned away")).count();
    assert!(lines < 20, "{lines} lines about strangers: {log}");
    assert!(!log.contains("squirrel") && !log.contains("badger"), "{log}");
}

#[test]
fn while_the_ranks_meet() {
    let (losses, said) = undisturbed(false);
    let dir = RunDir::new();
    let job = train(&dir, false);
    let mut cluster = Cluster::new();
    job.start_rank(0, &mut cluster);
    let strangers = attack(&job, &said);
    cluster.wait_for_words("too many connections at once");
    job.start_rank(1, &mut cluster);
    let ended = cluster.wait(SOON);
    drop(strangers);
    assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
    assert_eq!(dir.losses(), losses);
    assert_named(&ended[0]);
}

#[test]
fn while_the_run_is_under_way() {
    let (losses, said) = undisturbed(true);
    let dir = RunDir::new();
    // Slower than it need be, so that all strangers come before the end.
    let job = train(&dir, true).set("emulate.slowdown", "[25, 25]");
    let mut cluster = job.start();
    cluster.wait_for_update(&dir, 2);
    let strangers = attack(&job, &said);
    cluster.wait_for_words("too many connections at once");
    let before_end = dir.losses().len() as u64;
    let ended = cluster.wait(SOON);
    drop(strangers);
    assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
    assert!(before_end < UPDATES, "the strangers came too late to disturb");
    assert_eq!(dir.losses(), losses);
    assert_named(&ended[0]);
}
