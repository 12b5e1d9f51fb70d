//! Proof that both ends of a new connection know the shared secret, without sending it.
//!
//! Challenge and response: each side draws a nonce and hashes both nonces, its role and what the
//! connection is for under a key made from the secret. It does not encrypt what follows and does not
//! tie the proof to the connection's bytes: it keeps strangers out, not an attacker on the path. Called
//! by `rendezvous/greeting.rs`.

use crate::error::CommError;

pub(crate) type Nonce = [u8; 32];
pub(crate) type Proof = [u8; 32];

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

/// The key made from a secret; the secret itself is not kept.
#[derive(Clone)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// `None` without a secret. An empty one is refused: it is an unset variable, not a wish.
    pub(crate) fn from_secret(secret: Option<&str>) -> Result<Option<Key>, CommError> {
        match secret {
            None => Ok(None),
            Some(secret) if secret.trim().is_empty() => Err(CommError::Misuse {
                operation: "join",
                what: "the shared secret is empty; set it to some text on all ranks, or not at all".to_owned(),
            }),
            Some(secret) => Ok(Some(Key(blake3::derive_key("hetseq-comm shared secret v1", secret.as_bytes())))),
        }
    }

    pub(crate) fn prove(&self, role: Role, claim: &Claim) -> Proof {
        *self.hash(role, claim).as_bytes()
    }

    /// In constant time, so that a forger learns nothing from how long it takes.
    pub(crate) fn verify(&self, role: Role, claim: &Claim, proof: &Proof) -> bool {
        self.hash(role, claim) == blake3::Hash::from_bytes(*proof)
    }

    fn hash(&self, role: Role, claim: &Claim) -> blake3::Hash {
        // Every field has a fixed size, so no two claims share their bytes.
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[role as u8]);
        hasher.update(&claim.generation.to_le_bytes());
        hasher.update(&claim.dialer_rank.to_le_bytes());
        hasher.update(&claim.answerer_rank.to_le_bytes());
        hasher.update(&claim.dialer_nonce);
        hasher.update(&claim.answerer_nonce);
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
        let key = |secret| Key::from_secret(Some(secret)).unwrap().unwrap();
        let (right, wrong) = (key("right"), key("wrong"));
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
    fn an_empty_secret_is_refused() {
        assert!(Key::from_secret(None).unwrap().is_none());
        assert!(Key::from_secret(Some(" ")).is_err());
    }
}
