//! Unknown programs connect to rank 0's port during the rendezvous and during training. None of
//! them joins, the log names them in a few lines, and the run computes the same bits as an
//! undisturbed run.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use crate::cluster::{Ended, Job, codes};
use crate::reference::shipped;
use crate::run_dir::RunDir;

const HERE: &str = "127.0.0.1";
const UPDATES: u64 = 25;
/// Far less than the timeouts of all attackers together.
const SOON: Duration = Duration::from_secs(60);

fn train(dir: &RunDir, encrypt: bool) -> Job {
    let job = shipped(dir, UPDATES).ranks(2).set("batch.split", "equal").set("comm.encrypt", encrypt);
    job.env_on(0, "HETSEQ_SECRET", "squirrel-of-the-park").env_on(1, "HETSEQ_SECRET", "squirrel-of-the-park")
}

/// The losses of an undisturbed run, and the first bytes that rank 1 sent to rank 0.
fn undisturbed(encrypt: bool) -> (BTreeMap<u64, f64>, Vec<u8>) {
    let dir = RunDir::new();
    let job = train(&dir, encrypt);
    let (port, recorded) = eavesdrop(job.port());
    job.env_on(1, "MASTER_PORT", &port.to_string()).succeed();
    let recorded = recorded.lock().unwrap().clone();
    assert!(recorded.starts_with(b"HSQF"));
    (dir.losses(), recorded)
}

/// Enough for a whole handshake.
const RECORDED_BYTES: usize = 4000;

/// Forwards connections from the returned port to `to`, and records the first bytes that the
/// clients send.
fn eavesdrop(to: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let record = recorded.clone();
    let forward = |mut from: TcpStream, mut to: TcpStream, record: Option<Arc<Mutex<Vec<u8>>>>| {
        spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if let Some(record) = &record {
                    let mut recorded = record.lock().unwrap();
                    let room = RECORDED_BYTES - recorded.len().min(RECORDED_BYTES);
                    recorded.extend(&buffer[..count.min(room)]);
                }
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Write);
        })
    };
    spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            // Rank 0 may not listen yet; the client retries.
            let Ok(server) = TcpStream::connect((HERE, to)) else { continue };
            forward(client.try_clone().unwrap(), server.try_clone().unwrap(), Some(record.clone()));
            forward(server, client, None);
        }
    });
    (port, recorded)
}

/// Connects as soon as a process listens.
fn connect(port: u16) -> TcpStream {
    let started = Instant::now();
    loop {
        match TcpStream::connect((HERE, port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(started.elapsed() < SOON, "{error}"),
        }
        sleep(Duration::from_millis(10));
    }
}

/// A thousand silent connections at once. They come from several processes, since each may open
/// only a limited number.
struct ConnectionFlood(Vec<Child>);

impl ConnectionFlood {
    fn start(port: u16) -> ConnectionFlood {
        let open = format!("for i in {{1..250}}; do exec {{fd}}<>/dev/tcp/{HERE}/{port}; done; exec sleep 60");
        let start = |_| Command::new("bash").args(["-c", &open]).stderr(Stdio::null()).spawn().unwrap();
        ConnectionFlood((0..4).map(start).collect())
    }
}

impl Drop for ConnectionFlood {
    fn drop(&mut self) {
        for child in &mut self.0 {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// Tries all attacks. The returned connections stay open until they are dropped.
fn attack(job: &Job, recorded: &[u8]) -> (ConnectionFlood, Vec<TcpStream>) {
    let port = job.port();
    let silent = vec![connect(port)];
    let send = |bytes: &[u8]| {
        let mut stream = connect(port);
        // Rank 0 may close the connection before all bytes are sent.
        let _ = stream.write_all(bytes);
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    let random: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    assert!(send(&random).is_empty(), "random bytes got an answer");
    let mut huge = recorded[..36].to_vec();
    huge[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    let checksum = crc32c::crc32c(&huge[..32]);
    huge[32..].copy_from_slice(&checksum.to_le_bytes());
    assert!(send(&huge).is_empty(), "a frame of 4 GiB got an answer");
    // Rank 0 answers with a new nonce, for which the recorded bytes contain no proof.
    let answer = send(recorded);
    assert!(answer.starts_with(b"HSQF"), "a replay got no answer");
    let wrong = job.clone().env_on(1, "HETSEQ_SECRET", "badger-of-the-wood");
    let ended = wrong.set("comm.join_s", 1).start_ranks([1]).wait(SOON).remove(0);
    assert_eq!(ended.code(), Some(1), "{ended:#?}");
    assert!(ended.stderr.contains("rejected this rank: the shared secrets differ"), "{}", ended.stderr);
    (ConnectionFlood::start(port), silent)
}

fn assert_named(rank_0: &Ended) {
    let log = &rank_0.stderr;
    for part in [
        "rejected 127.0.0.1:",
        "not the hetseq protocol",
        "a frame or message of 4294967295 bytes, the limit is 2048",
        "the shared secrets differ",
        // The replay and the process with a wrong secret, which tries more than once, have the same
        // reason and address: one line and a count.
        " from 127.0.0.1 (wrong secret)",
        "there were too many connections at once",
        "from 127.0.0.1 (too many connections)",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    let lines = log.lines().filter(|line| line.contains("rejected ")).count();
    assert!(lines < 20, "{lines} lines about attackers: {log}");
    assert!(!log.contains("squirrel") && !log.contains("badger"), "{log}");
}

#[test]
fn attacks_during_the_rendezvous_have_no_effect() {
    let (losses, recorded) = undisturbed(false);
    let dir = RunDir::new();
    let job = train(&dir, false);
    let mut cluster = job.start_ranks([0]);
    let attackers = attack(&job, &recorded);
    cluster.wait_for_message("too many connections at once");
    job.start_rank(1, &mut cluster);
    let ended = cluster.wait(SOON);
    drop(attackers);
    assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
    assert_eq!(dir.losses(), losses);
    assert_named(&ended[0]);
}

#[test]
fn attacks_during_training_have_no_effect() {
    let (losses, recorded) = undisturbed(true);
    let dir = RunDir::new();
    // Slowed down, so that all attacks happen before the end.
    let job = train(&dir, true).set("emulate.slowdown", "[25, 25]");
    let mut cluster = job.start();
    cluster.wait_for_update(&dir, 2);
    let attackers = attack(&job, &recorded);
    cluster.wait_for_message("too many connections at once");
    let before_end = dir.losses().len() as u64;
    let ended = cluster.wait(SOON);
    drop(attackers);
    assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
    assert!(before_end < UPDATES, "the attacks came after the last update");
    assert_eq!(dir.losses(), losses);
    assert_named(&ended[0]);
}
