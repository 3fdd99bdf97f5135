//! The stored form of a slice, which is some layers of a block, and of a note.
//!
//! ```text
//! "RIFFLESB"  version u32  byte order u32                            numbers little-endian
//! key u128, number of the slice u32, packed u32 (0 or 1)
//! tokens: u32 each
//! planes: for each layer of the slice and KV head: K, V
//! hash of all the above: u128
//! ```
//!
//! A note has `"RIFFLESN"`, the key of its block, no slice, no tokens, and its bytes instead of planes.

use riffle_attention::Format;
use twox_hash::XxHash3_128;

use super::packing::{pack, unpack};
use crate::CacheShape;
use crate::pool::PlaneKind;
use crate::snapshot::BYTE_ORDER;

const SLICE_MAGIC: &[u8; 8] = b"RIFFLESB";
const NOTE_MAGIC: &[u8; 8] = b"RIFFLESN";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 16 + 16 + 8;
const HASH_BYTES: usize = 16;
/// A block with more bytes is split into several slices.
const SLICE_BYTES: u64 = 512 << 10;
/// Largest note: the state of recurrent layers takes some hundreds of megabytes in the largest models.
pub(super) const MOST_NOTE_BYTES: usize = 1 << 30;

/// Identifies a block: hash, index, tokens.
#[derive(Debug, Clone)]
pub(super) struct BlockName {
    pub(super) key: u128,
    pub(super) depth: usize,
    pub(super) tokens: Vec<u32>,
}

impl BlockName {
    /// The store's name for a slice of the block.
    pub(super) fn slice(&self, slice: usize) -> String {
        format!("{:032x}.{}.{slice}", self.key, self.depth)
    }

    /// The store's name for the block's note.
    pub(super) fn note(&self) -> String {
        format!("{:032x}.{}.note", self.key, self.depth)
    }
}

/// Number of slices per block. Each has some layers, so that the first layers can be computed while the last are
/// loading.
pub(super) fn slices(shape: &CacheShape) -> usize {
    let wanted = shape.bytes_for(shape.page_tokens).div_ceil(SLICE_BYTES);
    usize::try_from(wanted)
        .unwrap_or(usize::MAX)
        .clamp(1, shape.layers.count())
}

/// The layers of a slice.
pub(super) fn layers_of(shape: &CacheShape, slice: usize) -> std::ops::Range<usize> {
    let slices = slices(shape);
    slice * shape.layers.count() / slices..(slice + 1) * shape.layers.count() / slices
}

/// Bytes of a slice's planes.
pub(super) fn raw_bytes(shape: &CacheShape, slice: usize) -> usize {
    planes_of(shape, slice).iter().map(|(_, bytes)| bytes).sum()
}

/// The most bytes of a slice in a store.
pub(super) fn most_bytes(shape: &CacheShape) -> usize {
    let largest = (0..slices(shape)).map(|slice| raw_bytes(shape, slice)).max();
    HEAD_BYTES + 4 * shape.page_tokens + largest.unwrap_or(0) + HASH_BYTES
}

fn planes_of(shape: &CacheShape, slice: usize) -> Vec<(Format, usize)> {
    let of_layer = |layer: usize| {
        let plane = |kind| {
            (
                shape.format(kind),
                shape.plane_bytes(shape.size_of(layer), kind) as usize,
            )
        };
        PlaneKind::BOTH.map(plane).repeat(shape.layer(layer).kv_heads)
    };
    layers_of(shape, slice).flat_map(of_layer).collect()
}

/// Encodes a slice, packed if that saves enough.
pub(super) fn seal_slice(shape: &CacheShape, block: &BlockName, slice: usize, planes: &[u8]) -> Vec<u8> {
    let packed = pack(planes, &planes_of(shape, slice));
    let mut bytes = slice_head(block, slice, packed.is_some());
    bytes.extend_from_slice(packed.as_deref().unwrap_or(planes));
    seal(bytes)
}

/// The planes of a slice; `None` if `bytes` are not exactly this slice.
pub(super) fn open_slice(shape: &CacheShape, block: &BlockName, slice: usize, bytes: &[u8]) -> Option<Vec<u8>> {
    let content = checked(bytes)?;
    let planes = planes_of(shape, slice);
    if let Some(raw) = content.strip_prefix(&slice_head(block, slice, false)[..]) {
        return (raw.len() == raw_bytes(shape, slice)).then(|| raw.to_vec());
    }
    unpack(content.strip_prefix(&slice_head(block, slice, true)[..])?, &planes)
}

/// Encodes a note.
pub(super) fn seal_note(block: &BlockName, note: &[u8]) -> Vec<u8> {
    let mut bytes = head(NOTE_MAGIC, block.key, 0, false);
    bytes.extend_from_slice(note);
    seal(bytes)
}

/// A block's note; `None` if `bytes` are not exactly this note.
pub(super) fn open_note(block: &BlockName, bytes: &[u8]) -> Option<Vec<u8>> {
    let note = checked(bytes)?.strip_prefix(&head(NOTE_MAGIC, block.key, 0, false)[..])?;
    Some(note.to_vec())
}

fn slice_head(block: &BlockName, slice: usize, packed: bool) -> Vec<u8> {
    let mut head = head(SLICE_MAGIC, block.key, slice as u32, packed);
    head.extend(block.tokens.iter().flat_map(|token| token.to_le_bytes()));
    head
}

fn head(magic: &[u8; 8], key: u128, slice: u32, packed: bool) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    head.extend_from_slice(magic);
    head.extend(VERSION.to_le_bytes());
    head.extend(BYTE_ORDER.to_le_bytes());
    head.extend(key.to_le_bytes());
    head.extend(slice.to_le_bytes());
    head.extend(u32::from(packed).to_le_bytes());
    head
}

fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let hash = XxHash3_128::oneshot(&bytes);
    bytes.extend(hash.to_le_bytes());
    bytes
}

/// The content before the hash, if the hash matches.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (content, hash) = bytes.split_last_chunk::<HASH_BYTES>()?;
    (XxHash3_128::oneshot(content).to_le_bytes() == *hash).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LayerShape, LayerShapes};

    fn block() -> BlockName {
        BlockName {
            key: 42,
            depth: 3,
            tokens: (0..16).collect(),
        }
    }

    fn shape() -> CacheShape {
        CacheShape {
            layers: LayerShapes::alike(3, LayerShape::new(2, 16)),
            page_tokens: 16,
            key_format: Format::F16,
            value_format: Format::Q8_0,
        }
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_found_out() {
        let (shape, block) = (shape(), block());
        let planes: Vec<u8> = (0..raw_bytes(&shape, 0)).map(|at| (at % 5) as u8).collect();
        let sealed = seal_slice(&shape, &block, 0, &planes);
        assert_eq!(open_slice(&shape, &block, 0, &sealed).unwrap(), planes);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(open_slice(&shape, &block, 0, &changed).is_none(), "byte {at}");
            assert!(open_slice(&shape, &block, 0, &sealed[..at]).is_none(), "cut at {at}");
        }
    }

    #[test]
    fn a_slice_is_opened_under_its_own_name_alone() {
        let (shape, block) = (shape(), block());
        let planes = vec![7; raw_bytes(&shape, 0)];
        let sealed = seal_slice(&shape, &block, 0, &planes);
        let other_key = BlockName {
            key: 43,
            ..block.clone()
        };
        let mut other_tokens = block.clone();
        other_tokens.tokens[5] += 1;
        assert!(open_slice(&shape, &other_key, 0, &sealed).is_none());
        assert!(open_slice(&shape, &other_tokens, 0, &sealed).is_none());
        assert!(open_note(&block, &sealed).is_none());
        let note = seal_note(&block, b"state");
        assert_eq!(open_note(&block, &note).unwrap(), b"state");
        assert!(open_note(&other_key, &note).is_none());
    }

    #[test]
    fn slices_hold_every_layer_once() {
        for (layers, head_dim) in [(1, 16), (5, 64), (28, 128), (80, 128)] {
            let shape = CacheShape {
                layers: LayerShapes::alike(layers, LayerShape::new(8, head_dim)),
                page_tokens: 256,
                ..shape()
            };
            let all: Vec<usize> = (0..slices(&shape)).flat_map(|slice| layers_of(&shape, slice)).collect();
            assert_eq!(all, (0..layers).collect::<Vec<_>>());
        }
    }
}
