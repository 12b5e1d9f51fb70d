//! The secret that all ranks of a run share: its source, and a proof of knowing it without sending
//! it.
//!
//! Challenge and response: each side draws a nonce and hashes both nonces, its role and the purpose
//! of the connection under a key derived from the secret. That alone keeps out processes without
//! the secret, but not an attacker on the path: the traffic that follows is neither encrypted nor
//! tied to the proof unless the connection is encrypted (`encryption/`, under another key derived
//! from the same secret). The file that may hold a secret is `secret_file.rs`. Called by
//! `rendezvous/`.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::CommError;
use crate::secret_file::hex;

pub(crate) type Nonce = [u8; 32];
pub(crate) type Proof = [u8; 32];

/// A shorter secret can be guessed: a program that records or answers a handshake can test guesses
/// offline. Hashes are fast, so only a random secret of at least this many characters is safe; 16
/// hexadecimal digits are 64 bits.
const SHORTEST: usize = 16;

/// How to create a secret, as the end of a message.
pub(crate) const ADVICE: &str = "set HETSEQ_SECRET to the same value on all ranks; export HETSEQ_SECRET=$(openssl rand -hex 16) \
                                 creates one, copy its value to the others";

/// The source of the secret that lets a rank join. All ranks of a run must use the same kind.
#[derive(Clone, Default)]
pub enum Secret {
    /// No secret: any process that reaches the port may join. For tests only; runs always have one.
    #[default]
    None,
    /// A given secret; the CLI takes it from `HETSEQ_SECRET`.
    Given(String),
    /// Rank 0 draws a secret at each start and writes it to this directory, in a file that only its
    /// owner may read; the other ranks wait for it there. With a rendezvous in a shared directory,
    /// the file is there instead.
    InDirectory(PathBuf),
}

impl Secret {
    /// Returns why `given` must not be used as [`Secret::Given`], if so. Whether it is random
    /// cannot be checked.
    pub fn weakness(given: &str) -> Option<String> {
        match given.trim().chars().count() {
            0 => Some("HETSEQ_SECRET is set but empty: set it to a value on every rank, or unset it".to_owned()),
            count @ 1..SHORTEST => Some(format!(
                "HETSEQ_SECRET has {count} characters and needs at least {SHORTEST} random ones: a shorter secret can be \
                 guessed from a recorded handshake; {ADVICE}"
            )),
            _ => None,
        }
    }
}

/// Written by hand so that the secret never appears in a log.
impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Secret::None => out.write_str("None"),
            Secret::Given(_) => out.write_str("Given(..)"),
            Secret::InDirectory(path) => out.debug_tuple("InDirectory").field(path).finish(),
        }
    }
}

/// The kind of a rank's secret, sent in clear so that ranks with different kinds are not reported
/// as a wrong secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SecretKind {
    None,
    Given,
    File,
}

/// What a rank can prove when it connects.
#[derive(Clone)]
pub(crate) enum Credentials {
    None,
    Given(SecretKey),
    /// From a file, or the reason why the file cannot be used (yet).
    File(Result<SecretKey, String>),
}

impl Credentials {
    pub(crate) fn given(secret: &str) -> Result<Credentials, CommError> {
        match Secret::weakness(secret) {
            Some(problem) => Err(CommError::WeakSecret { problem }),
            None => Ok(Credentials::Given(SecretKey::new(secret))),
        }
    }

    pub(crate) fn kind(&self) -> SecretKind {
        match self {
            Credentials::None => SecretKind::None,
            Credentials::Given(_) => SecretKind::Given,
            Credentials::File(_) => SecretKind::File,
        }
    }

    pub(crate) fn key(&self) -> Option<&SecretKey> {
        match self {
            Credentials::Given(key) | Credentials::File(Ok(key)) => Some(key),
            Credentials::None | Credentials::File(Err(_)) => None,
        }
    }
}

/// The side of a connection that proves. It is part of the hash, so that a proof cannot be sent
/// back to its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Dialer,
    Answerer,
}

/// What is proven: everything that both sides said in their auth messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) generation: u64,
    pub(crate) dialer_rank: u64,
    pub(crate) answerer_rank: u64,
    pub(crate) dialer_nonce: Nonce,
    pub(crate) answerer_nonce: Nonce,
}

impl Claim {
    /// Returns a unique encoding: every field has a fixed size, so no two claims have the same
    /// bytes.
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

/// The keys derived from a secret, one for each use. The secret itself is not stored.
#[derive(Clone)]
pub(crate) struct SecretKey {
    auth: [u8; 32],
    encryption: [u8; 32],
}

impl SecretKey {
    pub(crate) fn new(secret: &str) -> SecretKey {
        let derive = |purpose| blake3::derive_key(purpose, secret.as_bytes());
        SecretKey { auth: derive("hetseq-comm shared secret v1"), encryption: derive("hetseq-comm encryption v1") }
    }

    /// Writes the keys for a file that only its owner can read.
    pub(crate) fn to_hex(&self) -> String {
        hex(&[self.auth, self.encryption].concat())
    }

    /// Reads what [`SecretKey::to_hex`] has written.
    pub(crate) fn from_hex(text: &str) -> Option<SecretKey> {
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        let bytes: [u8; 64] = bytes?.try_into().ok()?;
        let (mut auth, mut encryption) = ([0; 32], [0; 32]);
        auth.copy_from_slice(&bytes[..32]);
        encryption.copy_from_slice(&bytes[32..]);
        Some(SecretKey { auth, encryption })
    }

    /// Returns the key for `encryption/`.
    pub(crate) fn for_encryption(&self) -> [u8; 32] {
        self.encryption
    }

    pub(crate) fn prove(&self, role: Role, claim: &Claim) -> Proof {
        *self.hash(role, claim).as_bytes()
    }

    /// Verifies a proof in constant time, so that an attacker learns nothing from the duration.
    pub(crate) fn verify(&self, role: Role, claim: &Claim, proof: &Proof) -> bool {
        self.hash(role, claim) == blake3::Hash::from_bytes(*proof)
    }

    fn hash(&self, role: Role, claim: &Claim) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.auth);
        hasher.update(&[role as u8]);
        hasher.update(&claim.to_bytes());
        hasher.finalize()
    }
}

/// Returns random bytes from the operating system.
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
    fn keys_survive_a_file() {
        let key = SecretKey::new("squirrel");
        let read = SecretKey::from_hex(&key.to_hex()).unwrap();
        assert_eq!((read.auth, read.encryption), (key.auth, key.encryption));
        for damaged in ["", "zz", &key.to_hex()[2..], "äöü"] {
            assert!(SecretKey::from_hex(damaged).is_none());
        }
    }

    #[test]
    fn a_proof_is_valid_for_its_secret_role_and_claim_only() {
        let (right, wrong) = (SecretKey::new("right"), SecretKey::new("wrong"));
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
    fn a_secret_that_can_be_guessed_is_rejected() {
        let rejected = |secret| Credentials::given(secret).err().map(|error| error.to_string());
        assert!(rejected(" ").unwrap().contains("empty"));
        let text = rejected("correct-horse-1").unwrap();
        assert!(
            text.contains("15 characters and needs at least 16") && text.contains("openssl rand -hex 16"),
            "{text}"
        );
        assert!(!text.contains("horse"), "{text}");
        assert_eq!(rejected("0f1e2d3c4b5a6978"), None);
    }

    #[test]
    fn debug_hides_the_secret() {
        assert!(!format!("{:?}", Secret::Given("hunter2".into())).contains("hunter2"));
    }
}
