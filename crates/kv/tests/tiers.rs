//! Keys and values return from farther tiers unchanged, within every budget and with any timing.

mod testing;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use riffle_attention::{Format, PageView, Span, read_keys, read_values};
use riffle_kv::{
    CacheShape, CpuDevice, DiskTier, KvCache, KvError, KvTiers, LayerShape, LayerShapes, Outlook, PagePool,
};
use riffle_testing::Unhurried;
use testing::{append_all, shape, tokens};

/// Bits of the keys and the values of pages, by (KV head, page).
type Contents = BTreeMap<(usize, usize), (Vec<u32>, Vec<u32>)>;

fn read_into(contents: &mut Contents, shape: &CacheShape, kv_head: usize, page: &PageView<'_>) {
    let d = shape.layer(0).key_width;
    let mut rows = [vec![0.0; page.tokens * d], vec![0.0; page.tokens * d]];
    read_keys(&page.keys, d, 0, page.tokens, &mut rows[0], d).unwrap();
    read_values(&page.values, d, 0, page.tokens, &mut rows[1], d).unwrap();
    let [keys, values] = rows.map(|row| row.iter().map(|x| x.to_bits()).collect());
    let before = contents.insert((kv_head, page.start / shape.page_tokens), (keys, values));
    assert!(before.is_none(), "a page is shown once");
}

/// The streamed contents of a layer. Checks the order of pages.
fn streamed(
    cache: &mut KvCache,
    layer: usize,
    wanted: Option<&[Vec<Span>]>,
    next: Option<usize>,
) -> Result<Contents, KvError> {
    let shape = *cache.shape();
    let mut contents = Contents::new();
    let mut last = vec![None; shape.layer(0).kv_heads];
    cache.stream::<KvError>(layer, wanted, next, &mut |pages| {
        for (kv_head, pages) in pages.iter().enumerate() {
            for page in pages {
                assert!(last[kv_head] < Some(page.start), "pages come in order");
                last[kv_head] = Some(page.start);
                read_into(&mut contents, &shape, kv_head, page);
            }
        }
        Ok(())
    })?;
    Ok(contents)
}

/// The contents of the wanted pages, from a cache in memory.
fn expected(cache: &KvCache, layer: usize, wanted: Option<&[Vec<Span>]>) -> Contents {
    let shape = cache.shape();
    let mut contents = Contents::new();
    let reader = cache.read();
    for kv_head in 0..shape.layer(0).kv_heads {
        for (number, page) in reader.pages(layer, kv_head).enumerate() {
            if wanted.is_none_or(|wanted| wanted[kv_head].iter().any(|span| span.range().contains(&number))) {
                read_into(&mut contents, shape, kv_head, &page);
            }
        }
    }
    contents
}

fn tiers(folder: &Path, shape: &CacheShape, near_pages: usize, slots: usize) -> KvTiers {
    let mut tiers = KvTiers {
        disk: Some(DiskTier {
            folder: folder.to_owned(),
            budget_bytes: None,
        }),
        slots,
        outlook: Outlook {
            context_tokens: 1 << 20,
            append_tokens: 64,
            scans_keys: false,
            ..Outlook::default()
        },
        ..KvTiers::memory(None)
    };
    tiers.ram_budget_bytes = Some(tiers.least_near_bytes(shape) + near_pages as u64 * shape.page_bytes(0));
    tiers
}

#[test]
fn lengths_around_a_page_boundary_come_back_from_every_tier_with_any_number_of_slots() {
    let folder = tempfile::tempdir().unwrap();
    for (format, value_format) in [
        (Format::F32, Format::F32),
        (Format::F16, Format::Bf16),
        (Format::Q8_0, Format::Q4_0),
        (Format::Bf16, Format::Q8_0),
        (Format::Q4_0, Format::F16),
    ] {
        for page_tokens in [16, 48] {
            let shape = CacheShape {
                value_format,
                ..shape(page_tokens, format)
            };
            for slots in [1, 2, 5] {
                let in_place = tiers(folder.path(), &shape, 0, slots);
                let mut apart = KvTiers {
                    device: Arc::new(CpuDevice::apart()),
                    ram_budget_bytes: Some(5 * shape.page_bytes(0)),
                    ..in_place.clone()
                };
                apart.device_budget_bytes = in_place.ram_budget_bytes.unwrap();
                for tiers in [in_place, apart] {
                    let mut cache = KvCache::with_tiers(shape, tiers).unwrap();
                    let mut resident = KvCache::new(shape, None).unwrap();
                    for count in [page_tokens - 1, 1, 1, page_tokens - 2, 2 * page_tokens, page_tokens, 7] {
                        for count in [count.min(page_tokens), count.saturating_sub(page_tokens)] {
                            append_all(&mut cache, 3, count);
                            append_all(&mut resident, 3, count);
                        }
                        for layer in 0..shape.layers.count() {
                            let next = Some((layer + 1) % shape.layers.count());
                            let found = streamed(&mut cache, layer, None, next).unwrap();
                            assert!(found == expected(&resident, layer, None));
                        }
                    }
                    assert!(cache.usage().bytes_by_tier.disk > 0);
                }
            }
        }
    }
}

#[test]
fn pages_come_back_whole_and_in_order_whatever_the_timing() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::F16);
    for (slots, loaders) in [(1, 1), (3, 1), (4, 3)] {
        let tiers = KvTiers {
            device: Arc::new(Unhurried::new(slots as u64)),
            loaders,
            ..tiers(folder.path(), &shape, 4, slots)
        };
        let mut cache = KvCache::with_tiers(shape, tiers).unwrap();
        let mut resident = KvCache::new(shape, None).unwrap();
        for step in 0..30usize {
            append_all(&mut cache, 5, 11);
            append_all(&mut resident, 5, 11);
            if step % 13 == 12 {
                cache.truncate(step * 7);
                resident.truncate(step * 7);
            }
            for layer in 0..shape.layers.count() {
                // Every head reads other pages than before, and the announced next layer may be wrong.
                let wanted: Vec<Vec<Span>> = (0..shape.layer(0).kv_heads)
                    .map(|head| {
                        vec![
                            Span::new(0, step % 3),
                            Span::new(step / 3 + head, step / 2 + 3 * head + layer),
                        ]
                    })
                    .collect();
                let wanted = (step % 4 > 0).then_some(&wanted[..]);
                let next = (step % 5 > 0).then_some((layer + step % 2) % shape.layers.count());
                let found = streamed(&mut cache, layer, wanted, next).unwrap();
                assert!(
                    found == expected(&resident, layer, wanted),
                    "{slots} slots, step {step}, layer {layer}"
                );
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Append(usize),
    Truncate(usize),
    Remove(usize, usize),
    Turn(usize),
    Read(usize, usize),
    LookThrough(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1usize..70).prop_map(Step::Append),
        2 => (0usize..400).prop_map(Step::Truncate),
        1 => (0usize..9, 1usize..4).prop_map(|(first, pages)| Step::Remove(first, pages)),
        1 => (0usize..300).prop_map(Step::Turn),
        4 => (0usize..12, 0usize..12).prop_map(|(from, to)| Step::Read(from, to)),
        1 => (0usize..300).prop_map(Step::LookThrough),
    ];
    proptest::collection::vec(step, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Compares any sequence of steps with a cache in memory.
    #[test]
    fn a_cache_over_tiers_behaves_as_one_in_memory(
        steps in steps(),
        page_stripes in 1usize..4,
        spare_pages in 0usize..20,
        slots in 1usize..6,
        key_format in 0usize..5,
        value_format in 0usize..5,
        apart in proptest::bool::ANY,
        scans_keys in proptest::bool::ANY,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let shape = CacheShape {
            key_format: Format::ALL[key_format],
            value_format: Format::ALL[value_format],
            ..shape(16 * page_stripes, Format::F32)
        };
        let disk_budget = 120 * (shape.page_bytes(0) + 16);
        let outlook = Outlook { context_tokens: 600, append_tokens: 70, scans_keys, ..Outlook::default() };
        let mut tiers = KvTiers {
            disk: Some(DiskTier { folder: folder.path().to_owned(), budget_bytes: Some(disk_budget) }),
            slots,
            outlook,
            ..KvTiers::memory(Some(0))
        };
        let near_budget = tiers.least_near_bytes(&shape) + spare_pages as u64 * shape.page_bytes(0);
        let ram_budget = 7 * shape.page_bytes(0);
        (tiers.ram_budget_bytes, tiers.device_budget_bytes) = if apart { (Some(ram_budget), near_budget) } else { (Some(near_budget), 0) };
        if apart {
            tiers.device = Arc::new(CpuDevice::apart());
        }
        let mut cache = KvCache::with_tiers(shape, tiers).unwrap();
        let mut resident = KvCache::new(shape, None).unwrap();
        let width = shape.layer(0).kv_heads * shape.layer(0).key_width;
        for (number, step) in steps.iter().enumerate() {
            match *step {
                Step::Append(count) => {
                    for layer in 0..shape.layers.count() {
                        let (keys, values) = (tokens(&shape, number as u64, 0, count), tokens(&shape, 99, number, count));
                        let before = cache.tokens(layer);
                        match cache.append(layer, &keys, &values) {
                            Ok(()) => resident.append(layer, &keys, &values).unwrap(),
                            Err(KvError::Budget { .. } | KvError::DiskBudget { .. }) => {
                                prop_assert_eq!(cache.tokens(layer), before);
                            }
                            Err(error) => prop_assert!(false, "{}", error),
                        }
                    }
                }
                Step::Truncate(keep) => {
                    cache.truncate(keep);
                    resident.truncate(keep);
                }
                Step::Remove(first, pages) => {
                    let last = resident.tokens(0) / shape.page_tokens;
                    if resident.tokens(0) == resident.tokens(1) && first + pages < last {
                        cache.remove_pages(first, pages);
                        resident.remove_pages(first, pages);
                    }
                }
                Step::Turn(first) => {
                    let count = resident.tokens(1).saturating_sub(first).min(40);
                    let keys = resident.read_keys(1, first.min(resident.tokens(1)), count).unwrap();
                    prop_assert!(cache.read_keys(1, first.min(resident.tokens(1)), count).unwrap() == keys);
                    let turned: Vec<f32> = keys.iter().map(|key| -key).collect();
                    cache.replace_keys(1, first.min(resident.tokens(1)), &turned).unwrap();
                    resident.replace_keys(1, first.min(resident.tokens(1)), &turned).unwrap();
                    prop_assert_eq!(turned.len(), count * width);
                }
                Step::Read(from, to) => {
                    let wanted = vec![vec![Span::new(from, to)], vec![], vec![Span::new(0, 1), Span::new(to, usize::MAX)]];
                    for layer in 0..shape.layers.count() {
                        let found = streamed(&mut cache, layer, Some(&wanted), Some(1 - layer)).unwrap();
                        prop_assert!(found == expected(&resident, layer, Some(&wanted)), "step {}", number);
                    }
                }
                Step::LookThrough(from) if scans_keys && cache.tokens(0) <= 600 => {
                    let reader = resident.read();
                    let pages: Vec<PageView<'_>> = reader.pages(0, 2).skip(from / shape.page_tokens).collect();
                    let same = cache.with_keys(0, 2, from, |found| {
                        let bits = |page: &PageView<'_>| {
                            let mut row = vec![0.0; page.tokens * shape.layer(0).key_width];
                            read_keys(&page.keys, shape.layer(0).key_width, 0, page.tokens, &mut row, shape.layer(0).key_width).unwrap();
                            (page.start, row.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
                        };
                        found.iter().map(bits).eq(pages.iter().map(bits))
                    });
                    prop_assert!(same.unwrap());
                }
                Step::LookThrough(_) => {}
            }
            let memory = near_budget + if apart { ram_budget } else { 0 };
            prop_assert!(cache.mapped_bytes() <= memory, "{} of {}", cache.mapped_bytes(), memory);
            prop_assert!(cache.file_bytes() <= disk_budget);
            let bytes = cache.usage().bytes_by_tier;
            prop_assert!(bytes.disk <= cache.file_bytes());
            prop_assert_eq!(bytes.total(), resident.usage().bytes_by_tier.total());
        }
        for layer in 0..shape.layers.count() {
            let found = streamed(&mut cache, layer, None, None).unwrap();
            prop_assert!(found == expected(&resident, layer, None));
        }
    }
}

#[test]
fn values_leave_before_keys_that_are_looked_through() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(32, Format::F16);
    let mut tiers = tiers(folder.path(), &shape, 0, 2);
    tiers.outlook = Outlook {
        context_tokens: 1000,
        append_tokens: 32,
        scans_keys: true,
        ..Outlook::default()
    };
    tiers.ram_budget_bytes = Some(shape.bytes_for(1000) * 7 / 10);
    let mut cache = KvCache::with_tiers(shape, tiers).unwrap();
    for _ in 0..30 {
        append_all(&mut cache, 0, 32);
    }
    // All keys can be scanned without memory for far keys, because no key is far.
    assert_eq!(cache.with_keys(1, 2, 0, |pages| pages.len()).unwrap(), 30);
    assert!(cache.usage().bytes_by_tier.disk > 0);
}

#[test]
fn what_no_tier_has_room_for_is_refused_and_says_what_fits() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(32, Format::F16);
    let mut tiers = tiers(folder.path(), &shape, 6, 2);
    tiers.disk.as_mut().unwrap().budget_bytes = Some(12 * (shape.page_bytes(0) + 16));
    let mut cache = KvCache::with_tiers(shape, tiers.clone()).unwrap();
    let mut resident = KvCache::new(shape, None).unwrap();
    let one = tokens(&shape, 0, 0, 1);
    let error = loop {
        match cache.append(0, &one, &one) {
            Ok(()) => resident.append(0, &one, &one).unwrap(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, KvError::Budget { .. }), "{error}");
    assert!(cache.tokens(0) >= 18 / shape.layer(0).kv_heads * 32);
    assert!(streamed(&mut cache, 0, None, None).unwrap() == expected(&resident, 0, None));

    tiers.ram_budget_bytes = Some(3 * shape.page_bytes(0));
    let mut small = KvCache::with_tiers(shape, tiers.clone()).unwrap();
    let error = small.append(0, &one, &one).unwrap_err();
    assert!(matches!(error, KvError::NearBudget { .. }), "{error}");
    assert_eq!((small.tokens(0), small.usage().pages), (0, 0));

    tiers.disk.as_mut().unwrap().folder = folder.path().join("missing");
    let error = KvCache::with_tiers(shape, tiers.clone()).err().unwrap().to_string();
    assert!(error.contains("missing") && error.contains("`disk.folder`"), "{error}");
    tiers.slots = 0;
    assert!(KvCache::with_tiers(shape, tiers).is_err());
}

#[test]
fn a_cache_over_tiers_is_saved_and_restored_as_one_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::Q8_0);
    let tiers = tiers(folder.path(), &shape, 5, 2);
    let mut cache = KvCache::with_tiers(shape, tiers.clone()).unwrap();
    let mut resident = KvCache::new(shape, None).unwrap();
    for _ in 0..25 {
        append_all(&mut cache, 1, 9);
        append_all(&mut resident, 1, 9);
    }
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    cache.save(&a, b"model", b"tokens").unwrap();
    resident.save(&b, b"model", b"tokens").unwrap();
    assert!(std::fs::read(&a).unwrap() == std::fs::read(&b).unwrap());
    let (mut restored, attachment) = PagePool::new(shape, tiers).unwrap().restore(&b, b"model").unwrap();
    assert_eq!(attachment, b"tokens");
    assert!(restored.usage().bytes_by_tier.disk > 0);
    append_all(&mut restored, 1, 20);
    append_all(&mut resident, 1, 20);
    for layer in 0..shape.layers.count() {
        assert!(streamed(&mut restored, layer, None, None).unwrap() == expected(&resident, layer, None));
    }
    let restored = KvCache::restore(&a, &shape, b"model", None).unwrap().0;
    assert_eq!(restored.tokens(0), 225);
}

#[cfg(target_os = "linux")]
#[test]
fn a_page_that_changed_on_disk_is_an_error_that_names_it_and_never_shown() {
    use std::os::unix::fs::FileExt;

    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::F16);
    let mut cache = KvCache::with_tiers(shape, tiers(folder.path(), &shape, 0, 2)).unwrap();
    let mut resident = KvCache::new(shape, None).unwrap();
    for _ in 0..10 {
        append_all(&mut cache, 1, 16);
        append_all(&mut resident, 1, 16);
    }
    // The files have no names, and this process has them open.
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let ours = folder.path().to_str().unwrap();
    // Lists all paths before opening any, because an open file appears in the list again.
    let paths: Vec<_> = open
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            std::fs::read_link(path).is_ok_and(|target| target.to_str().is_some_and(|t| t.starts_with(ours)))
        })
        .collect();
    let files: Vec<_> = paths
        .iter()
        .map(|path| std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap())
        .filter(|file| file.metadata().unwrap().len() > 0)
        .collect();
    assert_eq!(files.len(), 2 * shape.layers.count(), "keys and values of every layer");
    let (mut byte, at) = ([0], files[1].metadata().unwrap().len() / 2);
    files[1].read_exact_at(&mut byte, at).unwrap();
    files[1].write_all_at(&[byte[0] ^ 1], at).unwrap();
    let mut messages = Vec::new();
    for layer in 0..shape.layers.count() {
        match streamed(&mut cache, layer, None, Some(layer)) {
            Ok(found) => assert!(found == expected(&resident, layer, None)),
            Err(error) => messages.push(error.to_string()),
        }
    }
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(
        messages[0].contains(" of page ") && messages[0].contains("have changed on disk"),
        "{messages:?}"
    );
    assert!(cache.save(folder.path().join("session"), b"", b"").is_err());
    files[1].write_all_at(&byte, at).unwrap();
    for layer in 0..shape.layers.count() {
        assert!(streamed(&mut cache, layer, None, None).unwrap() == expected(&resident, layer, None));
    }
}

#[test]
fn bookkeeping_stays_below_three_percent_with_most_pages_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    for page_tokens in [64, 256] {
        for format in Format::ALL {
            let shape = CacheShape {
                layers: LayerShapes::alike(4, LayerShape::new(2, 64)),
                page_tokens,
                key_format: format,
                value_format: format,
            };
            let mut cache = KvCache::with_tiers(shape, tiers(folder.path(), &shape, 10, 2)).unwrap();
            for _ in 0..3000 / 50 {
                append_all(&mut cache, 0, 50);
            }
            let usage = cache.usage();
            let share = usage.bookkeeping_bytes as f64 / usage.bytes_by_tier.total() as f64;
            assert!(share < 0.03, "{} pages of {page_tokens}: {share}", format.name());
            assert_eq!(usage.bytes_by_tier.total(), shape.bytes_for(3000));
        }
    }
}
