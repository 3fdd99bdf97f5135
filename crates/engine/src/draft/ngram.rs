//! Earlier places of the latest tokens of a text, and the tokens that followed them.
//!
//! A chain links every position to the latest position before it behind the same two tokens, as compressors of the Lempel-Ziv family do
//! ("prompt lookup", without a bound on the length of a match). It takes some 20 bytes a token; a suffix automaton takes more than a hundred.

use std::collections::HashMap;

/// Tokens that two places must have in common.
const LEAST: usize = 2;
/// Places that are compared with the text's end, the latest first.
const CANDIDATES: usize = 64;
/// Longest match that is told apart.
const LONGEST: usize = 32;

/// A text, and its places by the two tokens before them.
#[derive(Debug, Default)]
pub(super) struct Ngrams {
    pub(super) text: Vec<u32>,
    /// The latest place behind two tokens.
    latest: HashMap<[u32; LEAST], u32>,
    /// For each place, the previous one behind the same two tokens, or itself.
    previous: Vec<u32>,
}

/// A place of the text whose tokens before it are the text's last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// The first token that followed.
    pub(super) place: usize,
    /// Tokens in common.
    pub(super) tokens: usize,
}

impl Ngrams {
    /// So many tokens that followed a match. Where the text ends before, it goes on as it did behind the match.
    pub(super) fn behind(&self, found: Match, tokens: usize) -> Vec<u32> {
        let period = self.text.len() - found.place;
        let followed = (0..tokens).map(|token| self.text[found.place + token % period]);
        followed.collect()
    }

    /// Goes on with the text.
    pub(super) fn extend(&mut self, tokens: &[u32]) {
        for token in tokens {
            // The end of the text becomes a place when a token follows.
            let place = self.text.len();
            let pair = place
                .checked_sub(LEAST)
                .map(|start| [self.text[start], self.text[start + 1]]);
            let before = pair.and_then(|pair| self.latest.insert(pair, place as u32));
            self.previous.push(before.unwrap_or(place as u32));
            self.text.push(*token);
        }
    }

    /// The place behind what the longest end of the text repeats; the latest of equal ones.
    pub(super) fn find(&self) -> Option<Match> {
        let text = &self.text;
        let last = text.len().checked_sub(LEAST)?;
        let mut place = *self.latest.get(&[text[last], text[last + 1]])? as usize;
        let mut best: Option<Match> = None;
        for _ in 0..CANDIDATES {
            let common = text[..place].iter().rev().zip(text.iter().rev());
            let tokens = common.take(LONGEST).take_while(|(a, b)| a == b).count();
            if best.is_none_or(|best| tokens > best.tokens) {
                best = Some(Match { place, tokens });
            }
            let before = self.previous[place] as usize;
            if before == place || best.is_some_and(|best| best.tokens == LONGEST) {
                break;
            }
            place = before;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// The same by looking everywhere.
    fn expected(text: &[u32]) -> Option<Match> {
        let mut places: Vec<usize> = (LEAST..text.len()).rev().collect();
        places.retain(|place| text[place - LEAST..*place] == text[text.len() - LEAST..]);
        places.truncate(CANDIDATES);
        let matches = places.into_iter().map(|place| {
            let common = text[..place].iter().rev().zip(text.iter().rev());
            let tokens = common.take(LONGEST).take_while(|(a, b)| a == b).count();
            Match { place, tokens }
        });
        matches.reduce(|best, other| if other.tokens > best.tokens { other } else { best })
    }

    #[test]
    fn the_latest_of_the_longest_matches_is_found_while_the_text_grows() {
        let mut random = StdRng::seed_from_u64(7);
        for words in [2u32, 3, 8, 60] {
            let mut ngrams = Ngrams::default();
            let mut text = Vec::new();
            for _ in 0..400 {
                let known = text.len();
                if random.random_bool(0.1) && text.len() > 20 {
                    let from = random.random_range(0..text.len() - 10);
                    let copied = text[from..from + 10].to_vec();
                    text.extend(copied);
                } else {
                    text.push(random.random_range(0..words))
                }
                ngrams.extend(&text[known..]);
                assert_eq!(ngrams.find(), if text.len() < LEAST { None } else { expected(&text) });
            }
        }
    }
}
