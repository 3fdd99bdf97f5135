//! Stop strings of an answer, and the probabilities of its tokens.

use proptest::prelude::*;
use riffle_engine::{StopMatcher, TokenProbabilities};

fn matcher(stops: &[&str]) -> StopMatcher {
    StopMatcher::new(stops.iter().map(|s| (*s).to_owned()))
}

#[test]
fn a_stop_string_is_found_across_pieces_and_not_shown() {
    let mut m = matcher(&["END"]);
    assert_eq!(m.push("the E"), "the ");
    assert_eq!(m.push("N"), "");
    assert_eq!(m.push("D of it"), "");
    assert_eq!(m.matched(), Some("END"));
    assert_eq!(m.push("more"), "");
}

#[test]
fn text_that_only_looked_like_a_stop_string_is_shown_in_full() {
    let mut m = matcher(&["\n\n"]);
    assert_eq!(m.push("a\n"), "a");
    assert_eq!(m.push("b"), "\nb");
    assert_eq!(m.push("\n"), "");
    assert_eq!(m.finish(), "\n");
}

#[test]
fn the_earliest_stop_string_wins() {
    let mut m = matcher(&["later", "now"]);
    assert_eq!(m.push("not now but later"), "not ");
    assert_eq!(m.matched(), Some("now"));
}

proptest! {
    #[test]
    fn the_result_does_not_depend_on_where_pieces_are_cut(
        text in "[abé]{0,40}",
        stop in "[abé]{1,4}",
        cuts in proptest::collection::vec(0usize..41, 0..8),
    ) {
        let whole: Vec<char> = text.chars().collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(whole.len())).collect();
        cuts.sort_unstable();
        cuts.push(whole.len());
        let mut m = matcher(&[&stop]);
        let mut shown = String::new();
        let mut start = 0;
        for end in cuts {
            shown += &m.push(&whole[start..end].iter().collect::<String>());
            start = end;
        }
        shown += &m.finish();
        let expected = text.find(&stop).map_or(text.as_str(), |at| &text[..at]);
        prop_assert_eq!(shown, expected);
        prop_assert_eq!(m.matched().is_some(), text.contains(&stop));
    }
}

#[test]
fn probabilities_are_those_of_the_softmax_with_the_likeliest_first() {
    let logits = [0.5f32, 2.0, -1.0, 2.0, 0.0];
    let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
    let expected = |token: usize| (f64::from(logits[token]) - sum.ln()) as f32;
    let found = TokenProbabilities::from_logits(&logits, 2, 3);
    assert!((found.log_probability - expected(2)).abs() < 1e-6);
    let tokens: Vec<u32> = found.likeliest.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, [1, 3, 0]);
    for (token, log_probability) in found.likeliest {
        assert!((log_probability - expected(token as usize)).abs() < 1e-6);
    }
    assert_eq!(TokenProbabilities::from_logits(&logits, 0, 0).likeliest, []);
    assert_eq!(TokenProbabilities::from_logits(&logits, 0, 99).likeliest.len(), 5);
}

#[test]
fn the_probability_of_large_logits_is_finite() {
    let found = TokenProbabilities::from_logits(&[1000.0, 0.0, -1000.0], 2, 1);
    assert_eq!(found.likeliest, [(0, 0.0)]);
    assert_eq!(found.log_probability, -2000.0);
}
