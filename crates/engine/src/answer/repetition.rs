//! Detects answers that repeat the same tokens.

use crate::GenerateOptions;

/// Longest detected run.
const MOST_PERIOD: usize = 256;

/// Fewest tokens that equal the tokens one run earlier.
const LEAST_REPEATED: usize = 128;

/// Fewest consecutive copies of the run.
const LEAST_TIMES: usize = 4;

/// Watches an answer's tokens for a loop: the same run of up to 256 tokens, at least four times in a row, with at
/// least 128 repeated tokens. Texts with parts that differ in one token, such as tables and lists, are not loops.
pub(crate) struct LoopWatch {
    /// For each period from 1 on, the number of latest tokens that equal the token one period earlier.
    equal: Vec<usize>,
}

impl LoopWatch {
    /// A watch for an answer under these options. `None` if loops are allowed: with a form, which decides the next
    /// tokens; with penalties against repetition; and if the model's end is ignored, because the caller wants an
    /// exact length.
    pub(crate) fn for_options(options: &GenerateOptions) -> Option<Self> {
        let sampling = &options.sampling;
        let penalises =
            sampling.repeat_penalty > 1.0 || sampling.presence_penalty > 0.0 || sampling.frequency_penalty > 0.0;
        let may_end = options.ends_loops && options.form.is_none() && !options.ignores_end && !penalises;
        may_end.then(Self::new)
    }

    fn new() -> Self {
        Self {
            equal: vec![0; MOST_PERIOD],
        }
    }

    /// Adds the last of the answer's `tokens`. Returns the period of the loop that it completes, in tokens.
    pub(crate) fn push(&mut self, tokens: &[u32]) -> Option<usize> {
        let (last, before) = tokens.split_last()?;
        let mut found = None;
        for (place, equal) in self.equal.iter_mut().enumerate() {
            let period = place + 1;
            let is_equal = before.len() >= period && before[before.len() - period] == *last;
            *equal = if is_equal { *equal + 1 } else { 0 };
            let is_loop = *equal >= LEAST_REPEATED.max((LEAST_TIMES - 1) * period);
            found = found.or(is_loop.then_some(period));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SamplingOptions;

    /// Number of tokens after which the watch detects a loop, and its period.
    fn end_of(tokens: &[u32]) -> Option<(usize, usize)> {
        let mut watch = LoopWatch::new();
        (1..=tokens.len()).find_map(|length| Some((length, watch.push(&tokens[..length])?)))
    }

    /// A text of `beginning` different tokens, then `times` copies of the same `period` different tokens.
    fn repeating(beginning: u32, period: u32, times: usize) -> Vec<u32> {
        let run: Vec<u32> = (0..period).map(|token| 10_000 + token).collect();
        (0..beginning).chain(run.repeat(times)).collect()
    }

    #[test]
    fn loops_of_every_period_end_after_four_times_and_128_repeated_tokens() {
        for period in 1..=256_usize {
            let tokens = repeating(50, period as u32, 300);
            let repeated = 128.max(3 * period);
            assert_eq!(end_of(&tokens), Some((50 + period + repeated, period)));
            let short = &tokens[..50 + period + repeated - 1];
            assert_eq!(end_of(short), None, "{period}");
        }
        assert_eq!(end_of(&repeating(0, 257, 20)), None, "longer runs are not looked for");
    }

    #[test]
    fn tables_lists_and_code_whose_parts_differ_are_no_loops() {
        for period in 1..=60 {
            for place in 0..period {
                // Rows in which one token counts up, as a number does.
                let row = |number: u32| (0..period).map(move |token| if token == place { 500 + number } else { token });
                let rows: Vec<u32> = (0..400).flat_map(row).collect();
                assert_eq!(end_of(&rows), None, "{period} {place}");
                // Numbers that repeat after ten rows become a loop only after four copies of the ten rows.
                let rows: Vec<u32> = (0..39).flat_map(|number| row(number % 10)).collect();
                assert_eq!(end_of(&rows), None, "{period} {place}");
            }
        }
    }

    #[test]
    fn a_run_that_stops_repeating_is_counted_anew() {
        let mut tokens = repeating(0, 20, 7);
        tokens.push(7);
        tokens.extend(repeating(0, 20, 7));
        assert_eq!(end_of(&tokens), None);
        tokens.extend(repeating(0, 20, 1));
        assert_eq!(end_of(&tokens), Some((141 + 148, 20)));
    }

    #[test]
    fn nothing_is_watched_where_loops_may_go_on() {
        let options = || GenerateOptions {
            ends_loops: true,
            ..GenerateOptions::default()
        };
        assert!(LoopWatch::for_options(&options()).is_some());
        assert!(LoopWatch::for_options(&GenerateOptions::default()).is_none());
        let exact = GenerateOptions {
            ignores_end: true,
            ..options()
        };
        assert!(LoopWatch::for_options(&exact).is_none());
        for sampling in [
            SamplingOptions {
                repeat_penalty: 1.1,
                ..SamplingOptions::default()
            },
            SamplingOptions {
                presence_penalty: 0.5,
                ..SamplingOptions::default()
            },
            SamplingOptions {
                frequency_penalty: 0.5,
                ..SamplingOptions::default()
            },
        ] {
            let penalised = GenerateOptions { sampling, ..options() };
            assert!(LoopWatch::for_options(&penalised).is_none());
        }
    }
}
