//! Encodes batches of events as MessagePack, in the form of vLLM's `msgspec`.
//!
//! ```text
//! batch: [seconds f64, [event, ..], data parallel rank]
//! Map:   {"type": "BlockStored", "block_hashes": [..], "parent_block_hash": h | nil, "token_ids": [..],
//!         "block_size": n, "lora_id": nil, "medium": "GPU", "lora_name": nil, "group_idx": 0,
//!         "kv_cache_spec_kind": "full_attention"}
//!        {"type": "BlockRemoved", "block_hashes": [..], "medium": "GPU", "group_idx": 0}
//!        {"type": "AllBlocksCleared"}
//! Array: ["BlockStored", hashes, parent, tokens, size, nil, medium, nil, nil, group, kind, nil]
//!        ["BlockRemoved", hashes, medium, group]
//!        ["AllBlocksCleared"]
//! ```
//!
//! Fields with their default value are omitted from maps, but not from arrays.

use rmp::encode::{ByteBuf, write_array_len, write_f64, write_map_len, write_nil, write_str, write_uint};

use crate::{Block, Event, Group, Medium};

/// Encoding of a single event. vLLM has used both, one after the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Encoding {
    /// Maps with named fields, from vLLM 0.20 on.
    #[default]
    Map,
    /// Arrays, in earlier versions.
    Array,
}

/// Consecutive blocks in one medium, each after its parent: one `BlockStored` on the wire.
struct Stored<'a> {
    blocks: Vec<&'a Block>,
    medium: Medium,
    group: Group,
}

/// Blocks removed from one medium: one `BlockRemoved` on the wire.
struct Removed {
    hashes: Vec<u64>,
    medium: Medium,
    group: Group,
}

enum Wire<'a> {
    Stored(Stored<'a>),
    Removed(Removed),
    Cleared,
}

/// Encodes a batch. Adjacent events of one medium become one event on the wire, as far as blocks are consecutive.
pub fn encode_batch(events: &[Event], unix_seconds: f64, encoding: Encoding) -> Vec<u8> {
    let wire = grouped(events);
    let mut out = ByteBuf::new();
    array(&mut out, 3);
    infallible(write_f64(&mut out, unix_seconds));
    array(&mut out, wire.len());
    for event in &wire {
        match (event, encoding) {
            (Wire::Stored(stored), Encoding::Map) => stored_map(&mut out, stored),
            (Wire::Stored(stored), Encoding::Array) => stored_array(&mut out, stored),
            (Wire::Removed(removed), Encoding::Map) => removed_map(&mut out, removed),
            (Wire::Removed(removed), Encoding::Array) => removed_array(&mut out, removed),
            (Wire::Cleared, Encoding::Map) => {
                map(&mut out, 1);
                text(&mut out, "type");
                text(&mut out, "AllBlocksCleared");
            }
            (Wire::Cleared, Encoding::Array) => {
                array(&mut out, 1);
                text(&mut out, "AllBlocksCleared");
            }
        }
    }
    // The rank among data-parallel replicas, of which there is one.
    number(&mut out, 0);
    out.into_vec()
}

fn grouped(events: &[Event]) -> Vec<Wire<'_>> {
    let mut wire: Vec<Wire<'_>> = Vec::new();
    for event in events {
        match (event, wire.last_mut()) {
            (Event::Stored { block, medium, group }, Some(Wire::Stored(last)))
                if (last.medium, last.group) == (*medium, *group) && follows(&last.blocks, block) =>
            {
                last.blocks.push(block);
            }
            (Event::Stored { block, medium, group }, _) => wire.push(Wire::Stored(Stored {
                blocks: vec![block],
                medium: *medium,
                group: *group,
            })),
            (Event::Removed { hash, medium, group }, Some(Wire::Removed(last)))
                if (last.medium, last.group) == (*medium, *group) =>
            {
                last.hashes.push(*hash);
            }
            (Event::Removed { hash, medium, group }, _) => wire.push(Wire::Removed(Removed {
                hashes: vec![*hash],
                medium: *medium,
                group: *group,
            })),
            (Event::Cleared, _) => wire.push(Wire::Cleared),
        }
    }
    wire
}

fn follows(blocks: &[&Block], block: &Block) -> bool {
    let Some(last) = blocks.last() else { return true };
    block.parent == Some(last.hash) && block.tokens.len() == last.tokens.len()
}

fn stored_map(out: &mut ByteBuf, stored: &Stored<'_>) {
    map(out, 10);
    text(out, "type");
    text(out, "BlockStored");
    text(out, "block_hashes");
    hashes(out, stored.blocks.iter().map(|block| block.hash));
    text(out, "parent_block_hash");
    optional(out, stored.blocks[0].parent);
    text(out, "token_ids");
    tokens(out, &stored.blocks);
    text(out, "block_size");
    number(out, stored.blocks[0].tokens.len() as u64);
    text(out, "lora_id");
    infallible(write_nil(out));
    text(out, "medium");
    text(out, stored.medium.name());
    text(out, "lora_name");
    infallible(write_nil(out));
    text(out, "group_idx");
    number(out, u64::from(stored.group.index()));
    text(out, "kv_cache_spec_kind");
    text(out, stored.group.kind());
}

fn stored_array(out: &mut ByteBuf, stored: &Stored<'_>) {
    array(out, 12);
    text(out, "BlockStored");
    hashes(out, stored.blocks.iter().map(|block| block.hash));
    optional(out, stored.blocks[0].parent);
    tokens(out, &stored.blocks);
    number(out, stored.blocks[0].tokens.len() as u64);
    infallible(write_nil(out));
    text(out, stored.medium.name());
    // The name of a LoRA and extra keys of the hash.
    infallible(write_nil(out));
    infallible(write_nil(out));
    number(out, u64::from(stored.group.index()));
    text(out, stored.group.kind());
    infallible(write_nil(out));
}

fn removed_map(out: &mut ByteBuf, removed: &Removed) {
    map(out, 4);
    text(out, "type");
    text(out, "BlockRemoved");
    text(out, "block_hashes");
    hashes(out, removed.hashes.iter().copied());
    text(out, "medium");
    text(out, removed.medium.name());
    text(out, "group_idx");
    number(out, u64::from(removed.group.index()));
}

fn removed_array(out: &mut ByteBuf, removed: &Removed) {
    array(out, 4);
    text(out, "BlockRemoved");
    hashes(out, removed.hashes.iter().copied());
    text(out, removed.medium.name());
    number(out, u64::from(removed.group.index()));
}

fn hashes(out: &mut ByteBuf, hashes: impl ExactSizeIterator<Item = u64>) {
    array(out, hashes.len());
    hashes.for_each(|hash| number(out, hash));
}

fn tokens(out: &mut ByteBuf, blocks: &[&Block]) {
    array(out, blocks.iter().map(|block| block.tokens.len()).sum());
    for token in blocks.iter().flat_map(|block| block.tokens.iter()) {
        number(out, u64::from(*token));
    }
}

fn optional(out: &mut ByteBuf, hash: Option<u64>) {
    match hash {
        Some(hash) => number(out, hash),
        None => infallible(write_nil(out)),
    }
}

fn array(out: &mut ByteBuf, length: usize) {
    infallible(write_array_len(out, length as u32));
}

fn map(out: &mut ByteBuf, length: u32) {
    infallible(write_map_len(out, length));
}

fn number(out: &mut ByteBuf, number: u64) {
    infallible(write_uint(out, number));
}

fn text(out: &mut ByteBuf, text: &str) {
    infallible(write_str(out, text));
}

/// Writing to memory cannot fail.
fn infallible<T, E: std::fmt::Debug>(written: Result<T, E>) {
    written.expect("memory takes what is written to it");
}
