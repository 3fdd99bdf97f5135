//! A compressed session keeps a share of its pairs, and continues like any other.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::sliding::sliding_model;
use crate::testing::{fixture, go_on, hybrid_engine, hybrid_prompt, largest_difference, prompt, small_engine};
use riffle_engine::{
    CompressMethod, CompressOptions, Engine, EngineError, EngineOptions, RepeatPrompt, Session, Spread, StreamWindow,
    share_prefix,
};

/// A text that leaves the context only room for the repeated text.
const TOKENS: usize = 300;

fn options() -> EngineOptions {
    EngineOptions::default()
        .with_context_tokens(Some(512))
        .with_batch_tokens(128)
        .with_chunk_tokens(64)
        .with_page_tokens(16)
}

/// The options of each method. The models of these tests have no tokenizer.
fn methods(keep: f64) -> [CompressOptions; 3] {
    let prompt = RepeatPrompt {
        first: vec![3, 1],
        later: vec![4, 1],
        behind: vec![5],
    };
    let kvzip = CompressMethod::KvZip {
        chunk_tokens: 100,
        prompt: Some(prompt),
    };
    let expected = CompressMethod::Expected {
        sample_tokens: 60,
        future_tokens: 64,
    };
    let echo = CompressMethod::Echo { part_tokens: 100 };
    [kvzip, expected, echo].map(|method| CompressOptions::new(method, keep))
}

fn session(engine: &Arc<Engine>, tokens: &[u32]) -> Session {
    let mut session = Session::new(engine).unwrap();
    session.prefill(tokens, &mut go_on).unwrap();
    session
}

/// Bits of the logits after each of some tokens.
fn bits_after(session: &mut Session, tokens: std::ops::Range<u32>) -> Vec<u32> {
    let mut bits = Vec::new();
    for token in tokens {
        session.advance(token % 31).unwrap();
        bits.extend(session.logits().iter().map(|logit| logit.to_bits()));
    }
    bits
}

#[test]
fn what_is_evicted_is_freed_and_the_share_is_that_asked_for() {
    let engine = small_engine(options());
    for keep in [0.5, 0.25] {
        for asked in methods(keep) {
            let mut session = session(&engine, &prompt(TOKENS));
            let logits = session.logits().to_vec();
            let pool_pages = session.sequence().pool().pages();
            let found = session.compress(&asked, &mut go_on).unwrap();
            assert_eq!(found.tokens, TOKENS);
            assert_eq!(found.pairs_before, 2 * 3 * TOKENS);
            assert_eq!(found.pairs, (keep * found.pairs_before as f64).ceil() as usize);
            assert_eq!(found.bytes, session.sequence().usage().bytes_by_tier.total());
            // The last page of each head may be partly empty.
            let page = found.bytes_before / pool_pages as u64;
            let most = (found.bytes_before as f64 * keep) as u64 + 6 * page;
            assert!(found.bytes <= most, "{asked}: {found:?}");
            assert_eq!(session.sequence().pool().pages() as u64, found.bytes / page, "{asked}");
            assert_eq!(session.logits(), logits, "the next token was decided before");
            assert_eq!(session.tokens().len(), TOKENS);
        }
    }
}

#[test]
fn a_share_of_one_changes_nothing() {
    let engine = small_engine(options());
    let expected = bits_after(&mut session(&engine, &prompt(TOKENS)), 0..5);
    for asked in methods(1.0) {
        let mut session = session(&engine, &prompt(TOKENS));
        let found = session.compress(&asked, &mut go_on).unwrap();
        assert_eq!((found.pairs, found.bytes), (found.pairs_before, found.bytes_before));
        assert!(bits_after(&mut session, 0..5) == expected);
    }
}

#[test]
fn protected_tokens_alone_are_read_as_sinks_and_a_window() {
    let engine = small_engine(options().with_decode("streaming:sinks=4,window=33,from=0".parse().unwrap()));
    let mut windowed = session(&engine, &prompt(TOKENS));
    windowed.advance(7).unwrap();
    let engine = small_engine(options());
    for asked in methods(0.001) {
        let mut session = session(&engine, &prompt(TOKENS));
        let found = session.compress(&asked, &mut go_on).unwrap();
        assert_eq!(found.pairs, 6 * 36);
        session.advance(7).unwrap();
        let difference = largest_difference(session.logits(), windowed.logits());
        assert!(difference < 2e-4, "{asked}: {difference}");
    }
}

#[test]
fn a_compressed_session_is_saved_restored_forked_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let engine = small_engine(options());
    for asked in methods(0.3) {
        let mut first = session(&engine, &prompt(TOKENS));
        first.compress(&asked, &mut go_on).unwrap();
        first.sequence().save(&path).unwrap();
        let mut fork = first.fork().unwrap();
        let mut restored = Session::restore(&engine, &path).unwrap();
        assert_eq!(restored.sequence().usage().pages, first.sequence().usage().pages);
        let expected = bits_after(&mut first, 0..20);
        assert!(bits_after(&mut fork, 0..20) == expected, "{asked}: fork");
        assert!(bits_after(&mut restored, 0..20) == expected, "{asked}: file");
        // A second prompt reads the remaining pairs, and can be undone.
        let held = first.tokens().len();
        first.prefill(&prompt(90), &mut go_on).unwrap();
        first.truncate(held).unwrap();
        assert_eq!(first.tokens().len(), held);
        assert!(
            bits_after(&mut first, 20..24) == bits_after(&mut restored, 20..24),
            "{asked}"
        );
        // The text's latest tokens stay, so a prompt may end differently.
        first.truncate(TOKENS - 32).unwrap();
        assert_eq!(first.tokens().len(), TOKENS - 32);
        bits_after(&mut first, 0..3);
        // A session cannot truncate to evicted tokens or share them.
        assert_eq!(share_prefix(first.sequence_mut()).unwrap(), 0);
        first.truncate(TOKENS - 33).unwrap();
        assert_eq!(first.tokens().len(), 0);
    }
}

#[test]
fn equal_heads_are_compressed_alike_by_every_policy_of_the_prompt() {
    for prefill in ["streaming:sinks=4,window=40,from=0", "h2o-chunk:from=0,local=4,heavy=8"] {
        let engine = small_engine(options().with_prefill(prefill.parse().unwrap()));
        for asked in methods(0.4) {
            let asked = CompressOptions {
                spread: Spread::Head,
                ..asked
            };
            let mut session = session(&engine, &prompt(TOKENS));
            let found = session.compress(&asked, &mut go_on).unwrap();
            assert_eq!(found.pairs, 6 * 120, "{prefill} {asked}");
            session.prefill(&prompt(70), &mut go_on).unwrap();
            session.advance(1).unwrap();
            assert!(session.logits().iter().all(|logit| logit.is_finite()));
            assert_eq!(share_prefix(session.sequence_mut()).ok().unwrap_or(0), 0);
        }
    }
}

#[test]
fn recurrent_layers_and_windows_of_layers_are_left_alone() {
    let engine = hybrid_engine(options());
    for asked in methods(0.5) {
        let mut session = session(&engine, &hybrid_prompt(TOKENS));
        let found = session.compress(&asked, &mut go_on).unwrap();
        let config = engine.model().config();
        assert_eq!(found.pairs_before, config.attention_layers() * config.kv_heads * TOKENS);
        assert_eq!(found.pairs, found.pairs_before.div_ceil(2));
        let mut fork = session.fork().unwrap();
        assert!(bits_after(&mut session, 0..5) == bits_after(&mut fork, 0..5), "{asked}");
    }
    let model = sliding_model();
    let engine = Engine::load(model.path(), options()).unwrap();
    for asked in methods(0.5) {
        let mut session = session(&engine, &prompt(TOKENS));
        let found = session.compress(&asked, &mut go_on).unwrap();
        assert_eq!((found.pairs_before, found.pairs), (3 * TOKENS, 3 * TOKENS / 2));
        let mut fork = session.fork().unwrap();
        assert!(bits_after(&mut session, 0..5) == bits_after(&mut fork, 0..5), "{asked}");
    }
}

#[test]
#[cfg_attr(not(unix), ignore = "an emulated device compiles its kernels with g++")]
fn a_device_compresses_as_the_processor_does() {
    use crate::testing::device::{MODEL, any_device, difference};
    let tokens = prompt(150);
    let run = |device| {
        let options = options().with_device(device).with_page_tokens(64);
        let engine = Engine::load(fixture(MODEL), options).unwrap();
        methods(0.5).map(|asked| {
            let mut session = session(&engine, &tokens);
            let found = session.compress(&asked, &mut go_on).unwrap();
            session.advance(7).unwrap();
            (found.pairs, vec![session.logits().to_vec()])
        })
    };
    for ((pairs, logits), (expected_pairs, expected)) in run(Some(Arc::new(any_device()))).into_iter().zip(run(None)) {
        assert_eq!(pairs, expected_pairs);
        assert!(difference(&logits, &expected) < 2e-2);
    }
}

#[test]
fn what_cannot_be_compressed_says_why_and_stays_as_it_is() {
    let engine = small_engine(options());
    let refused = |session: &mut Session, asked: &CompressOptions, words: &str| {
        let before = (session.sequence().usage().pages, session.logits().to_vec());
        let error = session.compress(asked, &mut go_on).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(words) && !message.contains('\n'), "{message}");
        assert_eq!((session.sequence().usage().pages, session.logits().to_vec()), before);
        error
    };
    let [kvzip, expected, echo] = methods(0.5);
    for keep in [0.0, -0.1, 1.5, f64::NAN] {
        let mut read = session(&engine, &prompt(40));
        let asked = CompressOptions { keep, ..kvzip.clone() };
        let error = refused(&mut read, &asked, "a share above 0");
        assert!(matches!(error, EngineError::Option { name: "keep", .. }));
    }
    refused(&mut Session::new(&engine).unwrap(), &kvzip, "holds no text yet");
    // The context has no room for the repeated text that kvzip reads.
    let mut long = session(&engine, &prompt(440));
    let error = refused(&mut long, &kvzip, "what is repeated of it");
    assert!(matches!(error, EngineError::ContextExceeded { .. }));
    for (method, words) in [
        (CompressMethod::EXPECTED, "what is sampled of it"),
        (CompressMethod::ECHO, "what is read again of it"),
    ] {
        refused(&mut long, &CompressOptions::new(method, 0.5), words);
    }
    long.compress(&expected, &mut go_on).unwrap();
    for asked in [kvzip, echo] {
        refused(&mut long, &asked, "compressed already; read more");
    }
    let halved = long.compress(&expected, &mut go_on).unwrap();
    assert_eq!(halved.pairs, halved.pairs_before / 2);
    // A model without a tokenizer needs the words of the prompt in the options.
    let wordless = CompressOptions::new(CompressMethod::KVZIP, 0.5);
    refused(&mut session(&engine, &prompt(40)), &wordless, "tokenizer");

    let evicting = small_engine(options().with_decode("h2o:budget=100,recent=32,observed=16".parse().unwrap()));
    refused(&mut session(&evicting, &prompt(200)), &expected, "`decode`");
    let window = StreamWindow {
        window_tokens: 64,
        sink_tokens: 4,
    };
    let endless = small_engine(options().with_window(window).unwrap());
    refused(&mut session(&endless, &prompt(40)), &expected, "`window`");
}

#[test]
fn a_session_that_scores_its_pairs_is_compressed_without_a_second_reading() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let engine = small_engine(options().with_score_pairs(true));
    let text = prompt(TOKENS);
    let asked = CompressOptions::new(CompressMethod::ECHO, 0.4);
    let again = |session: &mut Session, asked: &CompressOptions| {
        let mut read = 0.0f64;
        let found = session
            .compress(asked, &mut |progress| {
                read = read.max(progress.tokens_done);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(found.pairs, (0.4 * found.pairs_before as f64).ceil() as usize);
        (read, bits_after(session, 0..5))
    };
    let (read, expected) = again(&mut session(&engine, &text), &asked);
    assert_eq!(read, 0.0);
    // Batches of other sizes, a file, a fork, and text that was taken back score alike.
    let other = small_engine(
        options()
            .with_score_pairs(true)
            .with_batch_tokens(48)
            .with_chunk_tokens(16),
    );
    assert!(again(&mut session(&other, &text), &asked) == (0.0, expected.clone()));
    session(&engine, &text).sequence().save(&path).unwrap();
    assert!(again(&mut Session::restore(&engine, &path).unwrap(), &asked) == (0.0, expected.clone()));
    let mut longer = session(&engine, &text);
    let mut fork = longer.fork().unwrap();
    assert!(again(&mut fork, &asked) == (0.0, expected.clone()));
    longer.prefill(&prompt(50), &mut go_on).unwrap();
    longer.truncate(TOKENS).unwrap();
    let (read, _) = again(&mut longer, &asked);
    assert_eq!(read, 0.0);
    // Tokens that were generated, and text that was read without scores, are read again.
    let mut written = session(&engine, &text);
    bits_after(&mut written, 0..3);
    let (read, _) = again(&mut written, &asked);
    assert_eq!(read, 3.0);
    let (short, plain) = (prompt(200), small_engine(options()));
    let (_, expected) = again(&mut session(&engine, &short), &asked);
    assert!(again(&mut session(&plain, &short), &asked) == (200.0, expected));
    // A second part is scored as the first one was.
    let mut parts = session(&engine, &text[..150]);
    let first = parts.compress(&asked, &mut go_on).unwrap().pairs;
    parts.prefill(&text[150..], &mut go_on).unwrap();
    let both = parts.compress(&asked, &mut |_| ControlFlow::Break(())).unwrap();
    // The latest 32 tokens of the first part are chosen from again.
    assert_eq!(both.pairs, first - 6 * 32 + (0.4 * 6.0 * 182.0f64).ceil() as usize);
}

#[test]
fn a_compression_that_is_stopped_leaves_the_session_as_it_was() {
    let engine = small_engine(options());
    let expected = bits_after(&mut session(&engine, &prompt(TOKENS)), 0..5);
    for asked in methods(0.5) {
        let mut session = session(&engine, &prompt(TOKENS));
        let mut told = Vec::new();
        let stopped = session.compress(&asked, &mut |progress| {
            told.push(progress.tokens_done);
            if progress.tokens_done > progress.tokens as f64 / 2.0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert!(matches!(stopped, Err(EngineError::Interrupted { .. })), "{asked}");
        assert!(told.is_sorted() && told.len() > 2);
        assert!(bits_after(&mut session, 0..5) == expected, "{asked}");
    }
}

#[test]
fn a_fork_that_shares_pages_keeps_what_another_evicts() {
    let engine = small_engine(options());
    let expected = bits_after(&mut session(&engine, &prompt(TOKENS)), 0..5);
    for asked in methods(0.2) {
        let mut whole = session(&engine, &prompt(TOKENS));
        let mut fork = whole.fork().unwrap();
        fork.compress(&asked, &mut go_on).unwrap();
        drop(fork);
        assert!(bits_after(&mut whole, 0..5) == expected, "{asked}");
    }
}
