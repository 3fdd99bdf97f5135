//! Finds earlier occurrences of a text's latest tokens, and the tokens that followed them.
//!
//! A chain links every position to the latest earlier position after the same two tokens, as in Lempel-Ziv
//! compressors ("prompt lookup", without a limit on match length). It takes about 20 bytes per token; a suffix
//! automaton takes more than a hundred.

use std::collections::HashMap;

/// Fewest matching tokens.
const LEAST: usize = 2;
/// Maximum number of positions compared with the text's end, latest first.
const CANDIDATES: usize = 64;
/// Match length at which comparison stops.
const LONGEST: usize = 32;

/// A text, and its positions by the two preceding tokens.
#[derive(Debug, Default)]
pub(super) struct Ngrams {
    pub(super) text: Vec<u32>,
    /// The latest position after each pair of tokens.
    latest: HashMap<[u32; LEAST], u32>,
    /// For each position, the previous position with the same two preceding tokens, or itself.
    previous: Vec<u32>,
}

/// A position of the text preceded by the text's last tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// Position of the first token that followed.
    pub(super) place: usize,
    /// Tokens in common.
    pub(super) tokens: usize,
}

impl Ngrams {
    /// Returns `tokens` tokens that followed a match. If the text ends earlier, the tokens from the match on repeat.
    pub(super) fn behind(&self, found: Match, tokens: usize) -> Vec<u32> {
        let period = self.text.len() - found.place;
        let followed = (0..tokens).map(|token| self.text[found.place + token % period]);
        followed.collect()
    }

    /// Appends tokens to the text.
    pub(super) fn extend(&mut self, tokens: &[u32]) {
        for token in tokens {
            // The end of the text becomes a position when a token follows.
            let place = self.text.len();
            let pair = place
                .checked_sub(LEAST)
                .map(|start| [self.text[start], self.text[start + 1]]);
            let before = pair.and_then(|pair| self.latest.insert(pair, place as u32));
            self.previous.push(before.unwrap_or(place as u32));
            self.text.push(*token);
        }
    }

    /// The position after the longest repetition of the text's end; the latest of equal ones.
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

    /// The expected result, by exhaustive search.
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
