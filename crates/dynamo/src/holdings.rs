//! Reports the cache's blocks of text in the form of Dynamo's router.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use dynamo_backend_common::KvEventPublisher;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData, StorageTier,
};
use dynamo_kv_router::zmq_wire::{StoredBlockOptions, create_stored_block_from_parts};
use riffle_events::{Block, Event, Group, Medium};

/// Passes KV events to Dynamo's publisher, in order.
#[derive(Default)]
pub(crate) struct Holdings(Mutex<PublisherState>);

#[derive(Default)]
struct PublisherState {
    publisher: Option<Arc<KvEventPublisher>>,
    /// Events before a publisher exists: the blocks of a prefix cache on disk. Dynamo sends no requests before that.
    early: Vec<Event>,
}

impl Holdings {
    /// Publishes events, or keeps them until there is a publisher. It does not wait.
    pub(crate) fn take(&self, events: Vec<Event>) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &told.publisher {
            Some(publisher) => publish(publisher, events),
            None => told.early.extend(events),
        }
    }

    /// Sets the publisher of all later events, and publishes the events that were kept.
    pub(crate) fn set_publisher(&self, publisher: Arc<KvEventPublisher>) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        publish(&publisher, mem::take(&mut told.early));
        told.publisher = Some(publisher);
    }

    /// Drops the publisher and the kept events.
    pub(crate) fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = PublisherState::default();
    }
}

fn publish(publisher: &KvEventPublisher, events: Vec<Event>) {
    let changes = events
        .into_iter()
        .filter_map(|event| change_of(event, publisher.kv_block_size()));
    // Event numbers must have no gaps, so only published events get one.
    let numbered = changes.map(|(data, tier)| {
        let event = KvCacheEvent {
            event_id: publisher.next_event_id(),
            data,
            dp_rank: 0,
        };
        (event, tier)
    });
    // An error means that Dynamo's runtime has ended: no router reads events then.
    drop(publisher.publish_batch_with_storage_tiers(numbered.collect()));
}

/// Converts a change to Dynamo's event and its tier. `None` for states of recurrent layers, for which the router has no
/// event.
fn change_of(event: Event, block_tokens: u32) -> Option<(KvCacheEventData, StorageTier)> {
    match event {
        Event::Stored {
            block,
            medium,
            group: Group::Attention,
        } => Some((stored(&block, block_tokens)?, tier_of(medium))),
        Event::Removed {
            hash,
            medium,
            group: Group::Attention,
        } => {
            let block_hashes = vec![ExternalSequenceBlockHash(hash)];
            Some((
                KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }),
                tier_of(medium),
            ))
        }
        Event::Stored { .. } | Event::Removed { .. } => None,
        // The event empties every tier.
        Event::Cleared => Some((KvCacheEventData::Cleared, StorageTier::Device)),
    }
}

fn stored(block: &Block, block_tokens: u32) -> Option<KvCacheEventData> {
    // Dynamo has no hash for a part of a block.
    if block.tokens.len() != block_tokens as usize {
        return None;
    }
    let options = StoredBlockOptions::default();
    Some(KvCacheEventData::Stored(KvCacheStoreData {
        parent_hash: block.parent.map(ExternalSequenceBlockHash),
        start_position: None,
        blocks: vec![create_stored_block_from_parts(
            block_tokens,
            block.hash,
            &block.tokens,
            options,
        )],
    }))
}

fn tier_of(medium: Medium) -> StorageTier {
    match medium {
        Medium::Gpu => StorageTier::Device,
        Medium::Cpu => StorageTier::HostPinned,
        Medium::Disk => StorageTier::Disk,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(hash: u64, parent: Option<u64>, tokens: &[u32]) -> Block {
        Block {
            hash,
            parent,
            tokens: tokens.into(),
        }
    }

    fn stored_in(medium: Medium, group: Group) -> Event {
        Event::Stored {
            block: block(7, Some(3), &[1, 2, 3, 4]),
            medium,
            group,
        }
    }

    #[test]
    fn each_tier_is_told_as_what_it_is() {
        for (medium, tier) in [
            (Medium::Gpu, StorageTier::Device),
            (Medium::Cpu, StorageTier::HostPinned),
            (Medium::Disk, StorageTier::Disk),
        ] {
            let (data, told) = change_of(stored_in(medium, Group::Attention), 4).expect("a change");
            assert_eq!(told, tier);
            let KvCacheEventData::Stored(data) = data else {
                panic!("{data:?}");
            };
            assert_eq!(data.parent_hash, Some(ExternalSequenceBlockHash(3)));
            assert_eq!(data.blocks[0].block_hash, ExternalSequenceBlockHash(7));
            let removed = Event::Removed {
                hash: 7,
                medium,
                group: Group::Attention,
            };
            let block_hashes = vec![ExternalSequenceBlockHash(7)];
            let expected = (KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }), tier);
            assert_eq!(change_of(removed, 4), Some(expected));
        }
        let cleared = change_of(Event::Cleared, 4);
        assert_eq!(cleared, Some((KvCacheEventData::Cleared, StorageTier::Device)));
    }

    #[test]
    fn hashes_of_tokens_are_those_of_the_router() {
        use dynamo_kv_router::protocols::{BlockHashOptions, compute_block_hash_for_seq};
        let (data, _) = change_of(stored_in(Medium::Cpu, Group::Attention), 4).expect("a change");
        let KvCacheEventData::Stored(data) = data else {
            panic!("{data:?}");
        };
        // The router hashes the blocks of a prompt one by one.
        let prompt = compute_block_hash_for_seq(&[9, 9, 9, 9, 1, 2, 3, 4], 4, BlockHashOptions::default());
        assert_eq!(data.blocks[0].tokens_hash, prompt[1]);
    }

    #[test]
    fn states_and_parts_of_blocks_are_not_told() {
        assert_eq!(change_of(stored_in(Medium::Gpu, Group::RecurrentState), 4), None);
        assert_eq!(change_of(stored_in(Medium::Gpu, Group::Attention), 8), None);
    }
}
