//! Known beginnings: the answer has the same bits, and a policy uses only its own pages.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::testing::{fixture, go_on, prompt};
use riffle_attention::Format;
use riffle_engine::{
    AttentionPrecision, Engine, EngineOptions, GenerateOptions, Session, StreamWindow, fill_prefix, prefix_cuts,
    store_prefix,
};
use riffle_kv::PrefixCache;

fn engine(prefill: &str, decode: &str, change: impl FnOnce(&mut EngineOptions)) -> Arc<Engine> {
    let mut options = EngineOptions::default()
        .with_context_tokens(Some(4096))
        .with_page_tokens(32)
        .with_batch_tokens(192)
        .with_chunk_tokens(48)
        .with_prefill(prefill.parse().unwrap())
        .with_decode(decode.parse().unwrap());
    change(&mut options);
    Engine::load(fixture("model"), options).expect("the shipped model")
}

/// The number of cached tokens, the bits of the logits after the prompt, and the answer.
fn answer(engine: &Arc<Engine>, cache: Option<&PrefixCache>, tokens: &[u32]) -> (usize, Vec<u32>, Vec<u32>) {
    let mut session = Session::new(engine).unwrap();
    if let Some(cache) = cache {
        fill_prefix(session.sequence_mut(), cache, tokens).unwrap();
    }
    let found = session.tokens().len();
    session.prefill(&tokens[found..], &mut go_on).unwrap();
    let logits = session.logits().iter().map(|logit| logit.to_bits()).collect();
    let options = GenerateOptions {
        max_tokens: 12,
        ..Default::default()
    };
    let generation = session.generate(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    if let Some(cache) = cache {
        store_prefix(session.sequence(), cache).unwrap();
    }
    (found, logits, generation.tokens)
}

#[test]
fn the_second_question_about_a_book_starts_where_the_book_ends_and_is_answered_alike() {
    let book = prompt(700);
    // Dense attention shares single tokens. A policy that selects for chunks shares whole chunks of 48 and pages of
    // 32.
    for (prefill, decode, found) in [
        ("full", "full", [0, 700, 702]),
        ("full", "quest:block=32,topk=2,threshold=0,from=0", [0, 700, 702]),
        ("xattention:block=64,tail=0,from=0", "full", [0, 672, 672]),
    ] {
        for kv in [Format::F16, Format::Q8_0] {
            let folder = tempfile::tempdir().unwrap();
            let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
            let engine = engine(prefill, decode, |options| options.cache.key_format = kv);
            let first = [&book[..], &[5, 6, 7]].concat();
            let second = [&book[..], &[9, 8, 7, 6, 5]].concat();
            let expected = [&first, &second].map(|tokens| answer(&engine, None, tokens));
            let got = [&first, &second, &first].map(|tokens| answer(&engine, Some(&cache), tokens));
            assert_eq!([got[0].0, got[1].0, got[2].0], found, "{prefill} {decode} {kv:?}");
            for (got, expected) in got.iter().zip([&expected[0], &expected[1], &expected[0]]) {
                assert_eq!(
                    (&got.1, &got.2),
                    (&expected.1, &expected.2),
                    "{prefill} {decode} {kv:?}"
                );
            }
        }
    }
}

#[test]
fn a_text_that_was_read_before_goes_on_from_its_last_token_with_the_same_bits() {
    let text = prompt(160);
    for kv in [Format::F16, Format::Q8_0, Format::Q4_0] {
        let options = |options: &mut EngineOptions| (options.cache.key_format, options.cache.value_format) = (kv, kv);
        let engine = engine("full", "full", options);
        // Lengths below a page of 32, one token above two pages, and one token below three.
        for length in [5, 31, 65, 95] {
            let folder = tempfile::tempdir().unwrap();
            let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
            let again = &text[..length];
            let longer = &text[..length + 60];
            let parted = [&text[..length - 2], &[3, 1, 4, 1, 5]].concat();
            answer(&engine, Some(&cache), again);
            for (tokens, found) in [(again, length - 1), (longer, length)] {
                let expected = answer(&engine, None, tokens);
                assert_eq!(
                    answer(&engine, Some(&cache), tokens),
                    (found, expected.1, expected.2),
                    "{kv:?}"
                );
            }
            let fresh = tempfile::tempdir().unwrap();
            let cache = PrefixCache::open(fresh.path(), u64::MAX).unwrap();
            answer(&engine, Some(&cache), again);
            let expected = answer(&engine, None, &parted);
            // The 65 tokens differ within a whole page.
            let found = if length == 65 { 32 } else { length - 2 };
            assert_eq!(
                answer(&engine, Some(&cache), &parted),
                (found, expected.1, expected.2),
                "{kv:?} {length}"
            );
        }
    }
}

#[test]
fn pages_of_another_policy_format_or_chunk_are_never_found() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
    let tokens = prompt(400);
    let found = |engine: Arc<Engine>| answer(&engine, Some(&cache), &tokens).0;
    assert_eq!(found(engine("tri-shape", "full", |_| ())), 0);
    assert_eq!(found(engine("full", "full", |_| ())), 0);
    assert_eq!(
        found(engine("full", "full", |options| options.cache.value_format = Format::Q4_0)),
        0
    );
    let rounded = |options: &mut EngineOptions| options.model.attention = AttentionPrecision::Rounded;
    assert_eq!(found(engine("full", "full", rounded)), 0);
    assert_eq!(found(engine("tri-shape:sinks=64", "full", |_| ())), 0);
    assert_eq!(
        found(engine("tri-shape", "full", |options| options.machine.chunk_tokens = 64)),
        0
    );
    // Full attention does not depend on chunks, and prompt pages do not depend on the decode policy.
    assert_eq!(
        found(engine("full", "certified", |options| options.machine.chunk_tokens = 64)),
        399
    );
    assert_eq!(found(engine("tri-shape", "full", |_| ())), 384);
    assert_eq!(found(engine("full", "full", rounded)), 399);
}

#[test]
fn generated_tokens_are_not_kept_as_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
    let engine = engine("full", "streaming:sinks=4,window=16", |_| ());
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&prompt(64), &mut go_on).unwrap();
    for token in 0..64 {
        session.advance(token).unwrap();
    }
    session.prefill(&prompt(64), &mut go_on).unwrap();
    assert_eq!(store_prefix(session.sequence(), &cache).unwrap().0, 64);
}

#[test]
fn a_window_begins_with_what_is_read_before_it_moves() {
    let window = StreamWindow {
        window_tokens: 200,
        sink_tokens: 20,
    };
    let options = EngineOptions::default()
        .with_page_tokens(32)
        .with_chunk_tokens(48)
        .with_batch_tokens(96);
    let engine = Engine::load(fixture("model"), options.with_window(window).unwrap()).unwrap();
    let book = prompt(700);
    // The window moves at 263 tokens. Before that, 192 tokens are whole pages in whole chunks. A shorter text keeps
    // its whole chunks.
    for (length, on_the_way, again) in [(700, true, 192), (150, false, 144)] {
        let folder = tempfile::tempdir().unwrap();
        let cache = PrefixCache::open(folder.path(), u64::MAX).unwrap();
        let tokens = &book[..length];
        let expected = answer(&engine, None, tokens);
        let mut first = Session::new(&engine).unwrap();
        let cuts = prefix_cuts(first.sequence(), length);
        assert_eq!(cuts.is_empty(), !on_the_way);
        for cut in cuts {
            first.prefill(&tokens[..cut], &mut go_on).unwrap();
            assert_eq!(store_prefix(first.sequence(), &cache).unwrap().0, cut);
        }
        first.prefill(&tokens[first.tokens().len()..], &mut go_on).unwrap();
        let kept = store_prefix(first.sequence(), &cache).unwrap().0;
        assert_eq!(
            kept,
            if on_the_way { 0 } else { 144 },
            "a window that moved keeps nothing"
        );
        let found = answer(&engine, Some(&cache), tokens);
        assert_eq!((found.0, &found.1, &found.2), (again, &expected.1, &expected.2));
    }
}
