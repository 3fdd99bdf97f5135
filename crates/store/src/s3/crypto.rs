//! Hashes for signing requests, in pure Rust.

use hmac::{Hmac, KeyInit, Mac};
use object_store::client::{CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, Signer, SigningAlgorithm};
use object_store::{Error, Result};
use sha2::{Digest, Sha256};

/// SHA-256 and HMAC.
#[derive(Debug)]
pub(super) struct Crypto;

struct Hash(Sha256, [u8; 32]);

struct KeyedHash(Hmac<Sha256>, [u8; 32]);

impl CryptoProvider for Crypto {
    fn digest(&self, algorithm: DigestAlgorithm) -> Result<Box<dyn DigestContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Hash(Sha256::new(), [0; 32]))),
            other => Err(unknown(format!("{other:?}"))),
        }
    }

    fn hmac(&self, algorithm: DigestAlgorithm, secret: &[u8]) -> Result<Box<dyn HmacContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => {
                let keyed = Hmac::new_from_slice(secret).map_err(|error| unknown(error.to_string()))?;
                Ok(Box::new(KeyedHash(keyed, [0; 32])))
            }
            other => Err(unknown(format!("{other:?}"))),
        }
    }

    fn sign(&self, algorithm: SigningAlgorithm, _: &[u8]) -> Result<Box<dyn Signer>> {
        Err(unknown(format!("{algorithm:?}")))
    }
}

impl DigestContext for Hash {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.1 = self.0.finalize_reset().into();
        Ok(&self.1)
    }
}

impl HmacContext for KeyedHash {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.1 = self.0.clone().finalize().into_bytes().into();
        Ok(&self.1)
    }
}

fn unknown(what: String) -> Error {
    Error::NotSupported {
        source: format!("{what} is not needed for S3").into(),
    }
}
