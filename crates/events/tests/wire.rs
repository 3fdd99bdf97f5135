//! Bytes of batches, compared with vLLM's own encoder (`scripts/make_vectors.py`).

use std::path::Path;

use riffle_events::{Block, Encoding, Event, Group, Medium, encode_batch};

fn block(hash: u64, parent: Option<u64>, tokens: &[u32]) -> Block {
    Block {
        hash,
        parent,
        tokens: tokens.into(),
    }
}

fn stored(block: Block, medium: Medium, group: Group) -> Event {
    Event::Stored { block, medium, group }
}

fn removed(hash: u64) -> Event {
    Event::Removed {
        hash,
        medium: Medium::Disk,
        group: Group::Attention,
    }
}

#[test]
fn batches_have_the_bytes_that_msgspec_writes() {
    const LARGE: u64 = (1 << 63) + 5;
    let tail = [256, 65535, 65536, u32::MAX];
    let events = [
        Event::Cleared,
        stored(block(1, None, &[0, 127, 128, 255]), Medium::Gpu, Group::Attention),
        stored(block(LARGE, Some(1), &tail), Medium::Gpu, Group::Attention),
        stored(block(300, Some(1), &[7, 8, 9, 10]), Medium::Cpu, Group::Attention),
        stored(block(LARGE, Some(1), &tail), Medium::Gpu, Group::RecurrentState),
        removed(LARGE),
        removed(1),
    ];
    for (encoding, name) in [(Encoding::Map, "map"), (Encoding::Array, "array")] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/vectors/{name}.bin"));
        let expected = std::fs::read(path).unwrap();
        assert!(encode_batch(&events, 1.5, encoding) == expected, "{name}");
    }
}

#[test]
fn blocks_of_another_place_or_another_text_are_events_of_their_own() {
    let chain = [
        block(1, None, &[1, 2]),
        block(2, Some(1), &[3, 4]),
        block(4, Some(3), &[5, 6]),
    ];
    let count = |events: &[Event]| {
        let bytes = encode_batch(events, 0.0, Encoding::Map);
        bytes.windows(11).filter(|text| text == b"BlockStored").count()
    };
    let all = |medium: Medium| {
        chain
            .iter()
            .map(move |block| stored(block.clone(), medium, Group::Attention))
    };
    let gpu: Vec<Event> = all(Medium::Gpu).collect();
    assert_eq!(count(&gpu[..2]), 1);
    assert_eq!(count(&gpu), 2);
    let mixed: Vec<Event> = all(Medium::Gpu)
        .take(1)
        .chain(all(Medium::Cpu).skip(1).take(1))
        .collect();
    assert_eq!(count(&mixed), 2);
}
