//! The secret that all ranks of a run share: where it comes from, and proof of knowing it without sending it.
//!
//! Challenge and response: each side draws a nonce and hashes both nonces, its role and what the
//! connection is for under a key made from the secret. By itself that keeps strangers out, not an attacker on the
//! path: what follows is neither encrypted nor tied to the proof, unless the connection is sealed (`seal.rs`, under
//! another key made from the same secret). The file that a secret may lie in is `secret_file.rs`. Called by
//! `rendezvous/`.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::CommError;

pub(crate) type Nonce = [u8; 32];
pub(crate) type Proof = [u8; 32];

/// A shorter secret can be found by trying: a program that records a handshake, or answers one, can
/// test guesses offline. Hashes are fast, so only a random secret of this many characters holds; 16
/// hexadecimal digits are 64 bits.
const SHORTEST: usize = 16;

/// How to come by a secret of one's own, as the end of a message.
pub(crate) const ADVICE: &str = "set HETSEQ_SECRET to the same on all ranks; export HETSEQ_SECRET=$(openssl rand -hex 16) \
                                 makes one, give its value to the others";

/// Where a rank has the secret from that lets it join. All ranks of a run must have it from the same kind of place.
#[derive(Clone, Default)]
pub enum Secret {
    /// There is none: whoever reaches the port may join. For tests; a run never does this.
    #[default]
    None,
    /// As given; the program takes it from `HETSEQ_SECRET`.
    Given(String),
    /// Rank 0 draws one at each start and leaves it in this directory, in a file that only its owner may read; the
    /// other ranks wait for it there. With a rendezvous in a shared directory it lies there instead.
    InDirectory(PathBuf),
}

impl Secret {
    /// Why `given` must not be used as [`Secret::Given`], if so. That it is random cannot be
    /// checked.
    pub fn weakness(given: &str) -> Option<String> {
        match given.trim().chars().count() {
            0 => Some("HETSEQ_SECRET is set but empty: give it a value on every rank, or unset it".to_owned()),
            count @ 1..SHORTEST => Some(format!(
                "HETSEQ_SECRET has {count} characters and needs at least {SHORTEST}, at random: a shorter one can be guessed \
                 from a recorded handshake; {ADVICE}"
            )),
            _ => None,
        }
    }
}

/// Written by hand so that the secret never reaches a log.
impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Secret::None => out.write_str("None"),
            Secret::Given(_) => out.write_str("Given(..)"),
            Secret::InDirectory(path) => out.debug_tuple("InDirectory").field(path).finish(),
        }
    }
}

/// What a rank tells about its secret in clear, so that a mismatch of habits is not taken for a wrong secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SecretKind {
    None,
    Given,
    File,
}

/// What a rank can show at a door.
#[derive(Clone)]
pub(crate) enum Credentials {
    None,
    Given(Key),
    /// From a file, or why it is of no use (yet).
    File(Result<Key, String>),
}

impl Credentials {
    pub(crate) fn given(secret: &str) -> Result<Credentials, CommError> {
        match Secret::weakness(secret) {
            Some(problem) => Err(CommError::WeakSecret { problem }),
            None => Ok(Credentials::Given(Key::new(secret))),
        }
    }

    pub(crate) fn kind(&self) -> SecretKind {
        match self {
            Credentials::None => SecretKind::None,
            Credentials::Given(_) => SecretKind::Given,
            Credentials::File(_) => SecretKind::File,
        }
    }

    pub(crate) fn key(&self) -> Option<&Key> {
        match self {
            Credentials::Given(key) | Credentials::File(Ok(key)) => Some(key),
            Credentials::None | Credentials::File(Err(_)) => None,
        }
    }
}

/// Which end of a connection proves. In the hash, so that a proof cannot be sent back to its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Dialer,
    Answerer,
}

/// What is proven: everything both sides said in their greetings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) generation: u64,
    pub(crate) dialer_rank: u64,
    pub(crate) answerer_rank: u64,
    pub(crate) dialer_nonce: Nonce,
    pub(crate) answerer_nonce: Nonce,
}

impl Claim {
    /// Every field has a fixed size, so no two claims share their bytes.
    pub(crate) fn to_bytes(self) -> [u8; 88] {
        let mut bytes = [0; 88];
        bytes[..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.dialer_rank.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.answerer_rank.to_le_bytes());
        bytes[24..56].copy_from_slice(&self.dialer_nonce);
        bytes[56..].copy_from_slice(&self.answerer_nonce);
        bytes
    }
}

/// The keys made from a secret, one for each use; the secret itself is not kept.
#[derive(Clone)]
pub(crate) struct Key {
    proving: [u8; 32],
    sealing: [u8; 32],
}

impl Key {
    pub(crate) fn new(secret: &str) -> Key {
        let derive = |purpose| blake3::derive_key(purpose, secret.as_bytes());
        Key { proving: derive("hetseq-comm shared secret v1"), sealing: derive("hetseq-comm encryption v1") }
    }

    /// For `seal.rs`.
    pub(crate) fn for_sealing(&self) -> [u8; 32] {
        self.sealing
    }

    pub(crate) fn prove(&self, role: Role, claim: &Claim) -> Proof {
        *self.hash(role, claim).as_bytes()
    }

    /// In constant time, so that a forger learns nothing from how long it takes.
    pub(crate) fn verify(&self, role: Role, claim: &Claim, proof: &Proof) -> bool {
        self.hash(role, claim) == blake3::Hash::from_bytes(*proof)
    }

    fn hash(&self, role: Role, claim: &Claim) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.proving);
        hasher.update(&[role as u8]);
        hasher.update(&claim.to_bytes());
        hasher.finalize()
    }
}

/// Fresh bytes from the operating system.
pub(crate) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim { generation: 1, dialer_rank: 2, answerer_rank: 0, dialer_nonce: [3; 32], answerer_nonce: [4; 32] }
    }

    #[test]
    fn a_proof_holds_for_its_secret_role_and_claim_only() {
        let (right, wrong) = (Key::new("right"), Key::new("wrong"));
        let proof = right.prove(Role::Dialer, &claim());
        assert!(right.verify(Role::Dialer, &claim(), &proof));
        assert!(!wrong.verify(Role::Dialer, &claim(), &proof));
        assert!(!right.verify(Role::Answerer, &claim(), &proof));
        for other in [
            Claim { generation: 2, ..claim() },
            Claim { dialer_rank: 3, ..claim() },
            Claim { answerer_rank: 1, ..claim() },
            Claim { dialer_nonce: [4; 32], ..claim() },
            Claim { answerer_nonce: [3; 32], ..claim() },
        ] {
            assert!(!right.verify(Role::Dialer, &other, &proof));
        }
    }

    #[test]
    fn a_secret_that_can_be_guessed_is_refused() {
        let refused = |secret| Credentials::given(secret).err().map(|error| error.to_string());
        assert!(refused(" ").unwrap().contains("empty"));
        let text = refused("correct-horse-1").unwrap();
        assert!(
            text.contains("15 characters and needs at least 16") && text.contains("openssl rand -hex 16"),
            "{text}"
        );
        assert!(!text.contains("horse"), "{text}");
        assert_eq!(refused("0f1e2d3c4b5a6978"), None);
    }

    #[test]
    fn debug_hides_the_secret() {
        assert!(!format!("{:?}", Secret::Given("hunter2".into())).contains("hunter2"));
    }
}
