//! Rows of several sequences read pages together: each sees its own pages in its own order, and shared far pages are
//! loaded once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::testing::{append_all, shape, tokens};
use proptest::prelude::*;
use riffle_attention::{
    Arithmetic, AttendJob, AttendOptions, BatchStream, Format, KvView, PageView, Partial, QueryTile, Selection, Span,
    read_keys, read_values,
};
use riffle_kv::stream_together;
use riffle_kv::{CacheShape, CpuDevice, DiskTier, KvCache, KvError, KvTiers, LayerRead, Outlook, PageId, PagePool};
use riffle_testing::Counted;

const SEQUENCES: usize = 4;
const MOST_TOKENS: usize = 300;

/// The start of a page, and the bits of its keys and values.
type Shown = (usize, Vec<u32>, Vec<u32>);

/// The pages that rows of a sequence read: all, or some of each KV head.
#[derive(Debug, Clone)]
struct Wanted {
    sequence: usize,
    pages: Option<Vec<Vec<Span>>>,
}

/// The pages of the reads, `[reads, kv_heads]`, and the attention of two rows per KV head over them.
#[derive(PartialEq)]
struct Read {
    pages: Vec<Vec<Vec<Shown>>>,
    partials: Vec<Partial>,
}

fn tiers(folder: &Path, shape: &CacheShape, tier: usize, spare_pages: u64, slots: usize) -> (KvTiers, Arc<Counted>) {
    let device = Counted::over(if tier == 2 {
        CpuDevice::apart()
    } else {
        CpuDevice::new()
    });
    let mut tiers = KvTiers {
        device: device.clone(),
        disk: (tier > 0).then(|| DiskTier {
            folder: folder.to_owned(),
            budget_bytes: None,
        }),
        slots,
        outlook: Outlook {
            context_tokens: MOST_TOKENS,
            append_tokens: 40,
            sequences: SEQUENCES,
            ..Outlook::default()
        },
        ..KvTiers::memory(None)
    };
    let near = tiers.least_near_bytes(shape) + spare_pages * shape.page_bytes(0);
    match tier {
        0 => {}
        1 => tiers.ram_budget_bytes = Some(near),
        _ => (tiers.ram_budget_bytes, tiers.device_budget_bytes) = (Some(9 * shape.page_bytes(0)), near),
    }
    (tiers, device)
}

fn shown(shape: &CacheShape, page: &PageView<'_>) -> Shown {
    let d = shape.layer(0).key_width;
    let mut rows = [vec![0.0; page.tokens * d], vec![0.0; page.tokens * d]];
    read_keys(&page.keys, d, 0, page.tokens, &mut rows[0], d).unwrap();
    read_values(&page.values, d, 0, page.tokens, &mut rows[1], d).unwrap();
    let [keys, values] = rows.map(|row| row.iter().map(|x| x.to_bits()).collect());
    (page.start, keys, values)
}

/// Streams the reads of some sequences together.
fn read(sequences: &mut [&mut KvCache], reads: &[Wanted], layer: usize, next: Option<usize>) -> Read {
    let shape = *sequences[0].shape();
    let (heads, head_dim) = (shape.layer(0).kv_heads, shape.layer(0).key_width);
    let queries = tokens(&shape, 77, 0, 2);
    let options = AttendOptions::new(0.2).with_arithmetic(Arithmetic::Fused);
    let selection = Selection::full(MOST_TOKENS);
    let tiles: Vec<QueryTile<'_>> = (0..reads.len() * heads)
        .map(|at| QueryTile {
            data: &queries[at % heads * head_dim..],
            rows: 1,
            row_stride: heads * head_dim,
            group: 2,
            head_dim,
            start: MOST_TOKENS,
        })
        .collect();
    let mut partials = vec![Partial::new(1, 2, head_dim); tiles.len()];
    let mut attention = BatchStream::new(&tiles, &options);
    let mut pages = vec![vec![Vec::new(); heads]; reads.len()];
    let named: Vec<LayerRead<'_>> = reads
        .iter()
        .map(|read| LayerRead {
            sequence: read.sequence,
            wanted: read.pages.as_deref(),
        })
        .collect();
    stream_together::<KvError>(sequences, &named, layer, next, &mut |views| {
        assert_eq!(views.len(), reads.len());
        for (pages, views) in pages.iter_mut().flatten().zip(views.iter().flatten()) {
            pages.extend(views.iter().map(|page| shown(&shape, page)));
        }
        let jobs = tiles
            .iter()
            .zip(views.iter().flatten())
            .map(|(queries, pages)| AttendJob {
                queries: *queries,
                kv: KvView { head_dim, pages },
                selection: &selection,
            });
        attention
            .attend(&jobs.collect::<Vec<_>>(), &options, &mut partials)
            .unwrap();
        Ok(())
    })
    .unwrap();
    attention.finish(&mut partials).unwrap();
    Read { pages, partials }
}

/// The same reads one by one.
fn read_apart(sequences: &mut [KvCache], reads: &[Wanted], layer: usize) -> Read {
    let mut all = Read {
        pages: Vec::new(),
        partials: Vec::new(),
    };
    for wanted in reads {
        let alone = Wanted {
            sequence: 0,
            ..wanted.clone()
        };
        let found = read(&mut [&mut sequences[wanted.sequence]], &[alone], layer, None);
        all.pages.extend(found.pages);
        all.partials.extend(found.partials);
    }
    all
}

/// The far pages of the reads, each with a sequence, KV head and index.
fn far_pages(sequences: &[KvCache], reads: &[Wanted], layer: usize) -> BTreeMap<PageId, (usize, usize, usize)> {
    let mut far = BTreeMap::new();
    for wanted in reads {
        let sequence = &sequences[wanted.sequence];
        let reader = sequence.read();
        for kv_head in 0..sequence.shape().layer(0).kv_heads {
            for (number, id) in sequence.page_ids(layer, kv_head).iter().enumerate() {
                let spans = wanted.pages.as_ref().map(|pages| &pages[kv_head]);
                let is_read = spans.is_none_or(|spans| spans.iter().any(|span| span.range().contains(&number)));
                if is_read && reader.near_page(layer, kv_head, number).is_none() {
                    far.insert(*id, (wanted.sequence, kv_head, number));
                }
            }
        }
    }
    far
}

/// Number of planes to load if each page is loaded once.
fn planes_of(
    sequences: &mut [KvCache],
    pages: &BTreeMap<PageId, (usize, usize, usize)>,
    layer: usize,
    device: &Counted,
) -> u64 {
    let before = device.planes();
    for (sequence, kv_head, number) in pages.values() {
        let sequence = &mut sequences[*sequence];
        let mut wanted = vec![Vec::new(); sequence.shape().layer(0).kv_heads];
        wanted[*kv_head].push(Span::new(*number, number + 1));
        sequence
            .stream::<KvError>(layer, Some(&wanted), None, &mut |_| Ok(()))
            .unwrap();
    }
    device.planes() - before
}

#[derive(Debug, Clone)]
enum Step {
    Append(usize, usize),
    Truncate(usize, usize),
    Remove(usize, usize),
    Fork(usize, usize),
    Park(usize),
    Share(usize),
    Read(Vec<Wanted>, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..SEQUENCES;
    let spans = proptest::collection::vec(
        (0usize..20, 0usize..9).prop_map(|(from, pages)| Span::new(from, from + pages)),
        0..3,
    );
    let pages = proptest::option::of(proptest::collection::vec(spans, 3));
    let wanted = (who.clone(), pages).prop_map(|(sequence, pages)| Wanted { sequence, pages });
    let step = prop_oneof![
        5 => (who.clone(), 1usize..40).prop_map(|(who, count)| Step::Append(who, count)),
        1 => (who.clone(), 0usize..200).prop_map(|(who, keep)| Step::Truncate(who, keep)),
        1 => (who.clone(), 0usize..4).prop_map(|(who, first)| Step::Remove(who, first)),
        3 => (who.clone(), who.clone()).prop_map(|(from, to)| Step::Fork(from, to)),
        2 => who.clone().prop_map(Step::Park),
        2 => who.prop_map(Step::Share),
        6 => (proptest::collection::vec(wanted, 1..6), 0usize..2).prop_map(|(reads, layer)| Step::Read(reads, layer)),
    ];
    proptest::collection::vec(step, 1..40)
}

/// Appends tokens of the common text to a sequence, unless the sequence holds other tokens or there is no memory.
fn append(sequence: &mut KvCache, count: usize) {
    let shape = *sequence.shape();
    for layer in 0..shape.layers.count() {
        let first = sequence.tokens(layer);
        if first + count > MOST_TOKENS {
            return;
        }
        let (keys, values) = (tokens(&shape, 4, first, count), tokens(&shape, 5, first, count));
        match sequence.append(layer, &keys, &values) {
            Ok(()) | Err(KvError::NearBudget { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs a step without a read. The length of a sequence determines its contents while it is `whole`.
fn change(sequences: &mut [KvCache], whole: &mut [bool], step: &Step) {
    match step {
        Step::Append(who, count) => append(&mut sequences[*who], *count),
        Step::Truncate(who, keep) => sequences[*who].truncate(*keep),
        Step::Remove(who, first) => {
            sequences[*who].remove_pages(*first, 1);
            whole[*who] = false;
        }
        Step::Fork(from, to) if from != to => {
            sequences[*to] = sequences[*from].fork();
            whole[*to] = whole[*from];
        }
        Step::Park(who) => {
            sequences[*who].park().unwrap();
        }
        Step::Share(who) if whole[*who] => {
            let sequence = &mut sequences[*who];
            let held = (0..sequence.shape().layers.count())
                .map(|layer| sequence.tokens(layer))
                .min();
            let text: Vec<u32> = (0..held.unwrap() as u32).collect();
            sequence.share(b"text", &text);
        }
        Step::Fork(..) | Step::Share(_) | Step::Read(..) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn rows_of_several_sequences_read_what_each_reads_alone_and_far_pages_come_once(
        steps in steps(),
        page_stripes in 1usize..3,
        (key_format, value_format) in (0usize..5, 0usize..5),
        (tier, spare_pages) in (0usize..3, 0u64..20),
        slots in 1usize..7,
        reads_ahead in proptest::bool::ANY,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let shape = CacheShape {
            key_format: Format::ALL[key_format],
            value_format: Format::ALL[value_format],
            ..shape(16 * page_stripes, Format::F32)
        };
        let (tiers, device) = tiers(folder.path(), &shape, tier, spare_pages, slots);
        let budgets = tiers.device_budget_bytes.saturating_add(tiers.ram_budget_bytes.unwrap_or(u64::MAX));
        let pool = PagePool::new(shape, tiers).unwrap();
        let mut sequences: Vec<KvCache> = (0..SEQUENCES).map(|_| pool.cache()).collect();
        let mut whole = [true; SEQUENCES];
        for step in &steps {
            let Step::Read(reads, layer) = step else {
                change(&mut sequences, &mut whole, step);
                continue;
            };
            let apart = read_apart(&mut sequences, reads, *layer);
            let far = far_pages(&sequences, reads, *layer);
            let once = planes_of(&mut sequences, &far, *layer, &device);
            let before = device.planes();
            let all: &mut Vec<&mut KvCache> = &mut sequences.iter_mut().collect();
            prop_assert!(read(all, reads, *layer, reads_ahead.then_some(1 - *layer)) == apart);
            let loaded = device.planes() - before;
            // Only a page with two holders may be loaded twice. Pages loaded ahead count on arrival.
            let is_once = loaded == once || loaded > once && whole.contains(&false);
            prop_assert!(is_once || reads_ahead, "{} for {}", loaded, once);
            prop_assert!(sequences[0].mapped_bytes() <= budgets);
        }
        drop(sequences);
        prop_assert_eq!((pool.near_bytes(), pool.file_bytes()), (0, 0));
    }
}

/// Eight sequences with a common document on disk and a few tokens of their own.
fn readers_of_a_document(pool: &PagePool) -> Vec<KvCache> {
    let mut book = pool.cache();
    for _ in 0..20 {
        append_all(&mut book, 1, 16);
    }
    let mut readers: Vec<KvCache> = (0..8).map(|_| book.fork()).collect();
    drop(book);
    for (salt, reader) in readers.iter_mut().enumerate() {
        append_all(reader, 10 * salt as u64, 5);
    }
    readers
}

#[test]
fn pages_of_the_next_layer_are_loaded_ahead_once_for_all_sequences() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::F16);
    let (mut tiers, device) = tiers(folder.path(), &shape, 1, 0, 6);
    tiers.outlook.sequences = 8;
    tiers.ram_budget_bytes = Some(tiers.least_near_bytes(&shape));
    let ring = 2 * tiers.slots as u64;
    let pool = PagePool::new(shape, tiers).unwrap();
    let mut readers = readers_of_a_document(&pool);
    let reads: Vec<Wanted> = (0..8).map(|sequence| Wanted { sequence, pages: None }).collect();
    let expected: Vec<Read> = (0..2).map(|layer| read_apart(&mut readers, &reads, layer)).collect();
    let once = [0, 1].map(|layer| {
        let far = far_pages(&readers, &reads, layer);
        assert!(far.len() >= 30, "{}", far.len());
        planes_of(&mut readers, &far, layer, &device)
    });
    let mut all: Vec<&mut KvCache> = readers.iter_mut().collect();
    // The next read of a layer is expected to equal its last.
    for layer in 0..2 {
        read(&mut all, &reads, layer, None);
    }
    let mut needed = device.planes();
    for layer in [0, 1, 0, 1] {
        assert!(read(&mut all, &reads, layer, Some(1 - layer)) == expected[layer]);
        needed += once[layer];
        let began = Instant::now();
        while device.planes() < needed + ring && began.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        assert_eq!(
            device.planes(),
            needed + ring,
            "a ring of pages is there ahead, and no page came twice"
        );
    }
}
