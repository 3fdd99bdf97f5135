//! Fills a context with text or lines, and inserts facts at given depths.

use crate::EvalError;

/// Text or lines that fill a context, and the allowed positions of facts.
pub(crate) struct Filler {
    pub(crate) tokens: Vec<u32>,
    /// Token counts before which a fact may start, ascending; `None` allows every position.
    pub(crate) cuts: Option<Vec<usize>>,
}

/// A fact as tokens, and its depth: 0 is the start, 1 the end.
pub(crate) struct Fact {
    pub(crate) depth: f64,
    pub(crate) tokens: Vec<u32>,
}

impl Filler {
    /// Exactly `room` tokens of a text from `start`, repeated as needed.
    pub(crate) fn text(hay: &[u32], start: usize, room: usize) -> Self {
        Self {
            tokens: hay.iter().cycle().skip(start).take(room).copied().collect(),
            cuts: None,
        }
    }

    /// The whole lines that fit in `room` tokens.
    pub(crate) fn lines(
        room: usize,
        mut line: impl FnMut(usize) -> Result<Vec<u32>, EvalError>,
    ) -> Result<Self, EvalError> {
        let (mut tokens, mut cuts) = (Vec::new(), vec![0]);
        for number in 0.. {
            let line = line(number)?;
            if line.is_empty() || tokens.len() + line.len() > room {
                break;
            }
            tokens.extend(line);
            cuts.push(tokens.len());
        }
        Ok(Self {
            tokens,
            cuts: Some(cuts),
        })
    }

    /// Returns `head` and the filler with its facts, and the first token of each fact in the given order.
    pub(crate) fn assemble(&self, head: &[u32], facts: &[Fact]) -> (Vec<u32>, Vec<usize>) {
        let place = |fact: &Fact| {
            let wanted = (fact.depth * self.tokens.len() as f64) as usize;
            match &self.cuts {
                None => wanted.min(self.tokens.len()),
                Some(cuts) => cuts[cuts.partition_point(|cut| *cut < wanted).min(cuts.len() - 1)],
            }
        };
        let mut order: Vec<(usize, usize)> = facts.iter().enumerate().map(|(i, fact)| (place(fact), i)).collect();
        order.sort_unstable();
        let (mut tokens, mut taken) = (head.to_vec(), 0);
        let mut starts = vec![0; facts.len()];
        for (place, number) in order {
            tokens.extend(&self.tokens[taken..place]);
            taken = place;
            starts[number] = tokens.len();
            tokens.extend(&facts[number].tokens);
        }
        tokens.extend(&self.tokens[taken..]);
        (tokens, starts)
    }
}

/// Tokens that remain for the filler.
///
/// # Errors
/// [`EvalError::Option`] if none remain.
pub(crate) fn room(context_tokens: usize, taken: usize, what: &str) -> Result<usize, EvalError> {
    context_tokens.checked_sub(taken).filter(|room| *room > 0).ok_or_else(|| {
        EvalError::Option(format!(
            "{what} takes {taken} tokens and does not fit a context of {context_tokens}: use longer --lengths or fewer --depths"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(depth: f64, token: u32) -> Fact {
        Fact {
            depth,
            tokens: vec![token; 2],
        }
    }

    #[test]
    fn facts_stand_at_their_depths_in_text_that_fills_the_room() {
        let filler = Filler::text(&[1, 2, 3], 1, 8);
        let (tokens, starts) = filler.assemble(&[9], &[fact(0.75, 70), fact(0.25, 60), fact(1.0, 80)]);
        assert_eq!(tokens, [9, 2, 3, 60, 60, 1, 2, 3, 1, 70, 70, 2, 3, 80, 80]);
        assert_eq!(starts, [9, 3, 13]);
    }

    #[test]
    fn facts_between_lines_never_cut_a_line() {
        let filler = Filler::lines(10, |number| Ok(vec![number as u32; 3])).unwrap();
        let (tokens, starts) = filler.assemble(&[], &[fact(0.5, 70)]);
        assert_eq!(tokens, [0, 0, 0, 1, 1, 1, 70, 70, 2, 2, 2]);
        assert_eq!(starts, [6]);
    }
}
