//! Decrypts files that open without a password.

use aes::cipher::block_padding::NoPadding;
use aes::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use aes::{Aes128, Aes256};
use md5::{Digest, Md5};
use sha2::{Sha256, Sha384, Sha512};

use super::object::{Dict, Object};

/// Pads passwords.
const PADDING: [u8; 32] = [
    0x28, 0xbf, 0x4e, 0x5e, 0x4e, 0x75, 0x8a, 0x41, 0x64, 0x00, 0x4e, 0x56, 0xff, 0xfa, 0x01, 0x08, 0x2e, 0x2e, 0x00,
    0xb6, 0xd0, 0x68, 0x3e, 0x80, 0x2f, 0x0c, 0xa9, 0xfe, 0x64, 0x53, 0x69, 0x7a,
];

/// An encryption method for strings or streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    None,
    Rc4,
    /// AES with a key per object.
    Aes128,
    /// AES with the key of the file.
    Aes256,
}

/// The key of a file and its methods.
#[derive(Debug)]
pub(super) struct Crypt {
    key: Vec<u8>,
    strings: Method,
    streams: Method,
}

/// The reason a file cannot be decrypted: it needs a password, or its method is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Locked;

impl Crypt {
    /// The key from the empty password.
    pub(super) fn new(encrypt: &Dict, id: &[u8]) -> Result<Self, Locked> {
        let is_standard = encrypt
            .get("Filter")
            .and_then(Object::name)
            .is_none_or(|name| name == "Standard");
        if !is_standard {
            return Err(Locked);
        }
        let number = |key: &str| encrypt.get(key).and_then(Object::number);
        let version = number("V").unwrap_or(0.0) as u32;
        let revision = number("R").unwrap_or(2.0) as u32;
        let (strings, streams) = match version {
            1..=3 => (Method::Rc4, Method::Rc4),
            4 | 5 => (method(encrypt, "StrF"), method(encrypt, "StmF")),
            _ => return Err(Locked),
        };
        let key = if version == 5 {
            key_of_256(encrypt, revision)?
        } else {
            let bits = match version {
                1 => 40,
                4 => 128,
                _ => number("Length").unwrap_or(40.0) as usize,
            };
            // Some programs write bytes instead of bits.
            let bytes = if bits < 40 { bits } else { bits / 8 };
            key_of_128(encrypt, id, revision, bytes.clamp(5, 16))?
        };
        Ok(Self { key, strings, streams })
    }

    pub(super) fn string(&self, id: (u32, u16), bytes: &[u8]) -> Vec<u8> {
        self.decrypted(self.strings, id, bytes)
    }

    pub(super) fn stream(&self, id: (u32, u16), bytes: &[u8]) -> Vec<u8> {
        self.decrypted(self.streams, id, bytes)
    }

    fn decrypted(&self, method: Method, (number, generation): (u32, u16), bytes: &[u8]) -> Vec<u8> {
        let key = || {
            let mut hash = Md5::new();
            hash.update(&self.key);
            hash.update(&number.to_le_bytes()[..3]);
            hash.update(generation.to_le_bytes());
            if method == Method::Aes128 {
                hash.update(b"sAlT");
            }
            hash.finalize()[..(self.key.len() + 5).min(16)].to_vec()
        };
        match method {
            Method::None => bytes.to_vec(),
            Method::Rc4 => rc4(&key(), bytes),
            Method::Aes128 => aes(&key(), bytes),
            Method::Aes256 => aes(&self.key, bytes),
        }
    }
}

/// The method of the crypt filter given by `key`.
fn method(encrypt: &Dict, key: &str) -> Method {
    let name = encrypt.get(key).and_then(Object::name).unwrap_or("Identity");
    let filters = encrypt.get("CF").and_then(Object::dict);
    let filter = filters.and_then(|filters| filters.get(name)).and_then(Object::dict);
    match filter.and_then(|filter| filter.get("CFM")).and_then(Object::name) {
        Some("V2") => Method::Rc4,
        Some("AESV2") => Method::Aes128,
        Some("AESV3") => Method::Aes256,
        _ => Method::None,
    }
}

fn bytes_of<'a>(encrypt: &'a Dict, key: &str) -> &'a [u8] {
    encrypt.get(key).and_then(Object::text).unwrap_or_default()
}

/// The key of up to 128 bits (ISO 32000-1, algorithm 2), checked against `/U` (algorithms 4 and 5).
fn key_of_128(encrypt: &Dict, id: &[u8], revision: u32, length: usize) -> Result<Vec<u8>, Locked> {
    let permissions = encrypt.get("P").and_then(Object::number).unwrap_or(0.0) as i64 as u32;
    let has_open_metadata = matches!(encrypt.get("EncryptMetadata"), Some(Object::Bool(false)));
    let owner = bytes_of(encrypt, "O");
    let mut hash = Md5::new();
    hash.update(PADDING);
    hash.update(&owner[..owner.len().min(32)]);
    hash.update(permissions.to_le_bytes());
    hash.update(id);
    if revision >= 4 && has_open_metadata {
        hash.update([0xff; 4]);
    }
    let mut key = hash.finalize().to_vec();
    if revision >= 3 {
        for _ in 0..50 {
            key = Md5::digest(&key[..length]).to_vec();
        }
    }
    key.truncate(length);
    let user = bytes_of(encrypt, "U");
    let is_right = if revision >= 3 {
        let mut check = Md5::new();
        check.update(PADDING);
        check.update(id);
        let mut check = check.finalize().to_vec();
        for round in 0..20u8 {
            let round_key: Vec<u8> = key.iter().map(|byte| byte ^ round).collect();
            check = rc4(&round_key, &check);
        }
        user.get(..16) == Some(&check[..])
    } else {
        user == rc4(&key, &PADDING)
    };
    if is_right { Ok(key) } else { Err(Locked) }
}

/// The key of 256 bits (ISO 32000-2, algorithm 2.A).
fn key_of_256(encrypt: &Dict, revision: u32) -> Result<Vec<u8>, Locked> {
    let user = bytes_of(encrypt, "U");
    let wrapped = bytes_of(encrypt, "UE").get(..32).ok_or(Locked)?;
    let (check, salts) = user.get(..48).ok_or(Locked)?.split_at(32);
    let hash = |salt: &[u8]| {
        let first = Sha256::digest(salt).to_vec();
        if revision >= 6 { hardened(first) } else { first }
    };
    if hash(&salts[..8]) != check {
        return Err(Locked);
    }
    let key = hash(&salts[8..16]);
    let mut bytes = wrapped.to_vec();
    let decryptor = cbc::Decryptor::<Aes256>::new_from_slices(&key, &[0; 16]).map_err(|_| Locked)?;
    decryptor
        .decrypt_padded_mut::<NoPadding>(&mut bytes)
        .map_err(|_| Locked)?;
    Ok(bytes)
}

/// The hash of revision 6 (ISO 32000-2, algorithm 2.B) for the empty password.
fn hardened(first: Vec<u8>) -> Vec<u8> {
    let mut key = first;
    for round in 0usize.. {
        let mut block = key.repeat(64);
        let length = block.len();
        let encryptor = cbc::Encryptor::<Aes128>::new_from_slices(&key[..16], &key[16..32]);
        let Ok(encryptor) = encryptor else { break };
        if encryptor.encrypt_padded_mut::<NoPadding>(&mut block, length).is_err() {
            break;
        }
        let sum: u32 = block[..16].iter().map(|byte| u32::from(*byte)).sum();
        key = match sum % 3 {
            0 => Sha256::digest(&block).to_vec(),
            1 => Sha384::digest(&block).to_vec(),
            _ => Sha512::digest(&block).to_vec(),
        };
        let last = block.last().copied().map_or(0, usize::from);
        if round >= 63 && last + 32 <= round + 1 {
            break;
        }
    }
    key.truncate(32);
    key
}

fn rc4(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut state: [u8; 256] = std::array::from_fn(|at| at as u8);
    let mut other = 0u8;
    for at in 0..256 {
        other = other.wrapping_add(state[at]).wrapping_add(key[at % key.len()]);
        state.swap(at, usize::from(other));
    }
    let (mut one, mut other) = (0u8, 0u8);
    let step = |byte: &u8| {
        one = one.wrapping_add(1);
        other = other.wrapping_add(state[usize::from(one)]);
        state.swap(usize::from(one), usize::from(other));
        byte ^ state[usize::from(state[usize::from(one)].wrapping_add(state[usize::from(other)]))]
    };
    bytes.iter().map(step).collect()
}

/// Decrypts blocks after their initialisation vector; invalid padding stays.
fn aes(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let Some((vector, blocks)) = bytes.split_at_checked(16) else {
        return Vec::new();
    };
    let mut blocks = blocks[..blocks.len() / 16 * 16].to_vec();
    let is_done = if key.len() == 32 {
        cbc::Decryptor::<Aes256>::new_from_slices(key, vector)
            .is_ok_and(|decryptor| decryptor.decrypt_padded_mut::<NoPadding>(&mut blocks).is_ok())
    } else {
        cbc::Decryptor::<Aes128>::new_from_slices(key, vector)
            .is_ok_and(|decryptor| decryptor.decrypt_padded_mut::<NoPadding>(&mut blocks).is_ok())
    };
    if !is_done {
        return Vec::new();
    }
    if let Some(padding @ 1..=16) = blocks.last().copied() {
        blocks.truncate(blocks.len() - usize::from(padding).min(blocks.len()));
    }
    blocks
}
