//! A sequence with faults of memory and disk, and its twin without faults.

use std::ops::ControlFlow;

use riffle_engine::{Checkpoint, FinishedRows, Runner, Sequence, Work};
use riffle_policy::Phase;

use crate::testing::bits;

/// The policies and window of a sequence.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) prefill: &'static str,
    pub(super) decode: &'static str,
    /// True if the member keeps only sinks and a window.
    pub(super) is_endless: bool,
    /// True if the member evicts tokens, so that it cannot truncate to before them.
    pub(super) lets_go: bool,
    /// True if the member's policies keep the state that they learned in a failed pass.
    pub(super) learns: bool,
}

const fn setting(prefill: &'static str, decode: &'static str) -> Setting {
    Setting {
        prefill,
        decode,
        is_endless: false,
        lets_go: false,
        learns: false,
    }
}

pub(super) const SETTINGS: [Setting; 6] = [
    setting("full", "full"),
    setting("full", "quest:from=0,topk=2,threshold=2,block=16,dense_layers=0"),
    setting(
        "log-stride:window=16,landmarks=1,block=24",
        "log-stride:window=16,landmarks=1,block=24",
    ),
    Setting {
        lets_go: true,
        ..setting("full", "streaming:sinks=4,window=40")
    },
    Setting {
        lets_go: true,
        learns: true,
        ..setting("full", "h2o:budget=60,recent=16,observed=8")
    },
    Setting {
        is_endless: true,
        lets_go: true,
        ..setting("full", "full")
    },
];

/// A sequence of the engine with faults, and its twin alone in memory.
pub(super) struct Member {
    pub(super) sequence: Sequence,
    pub(super) alone: Sequence,
    /// Unread tokens of the prompt, and the prompt's end.
    pub(super) unread: Vec<u32>,
    pub(super) goal: usize,
    pub(super) setting: &'static Setting,
    /// True if the member's bits may differ: policies learned from a failed pass, or an eviction failed for lack of
    /// memory.
    pub(super) is_disturbed: bool,
}

/// The tokens of a member in a pass.
pub(super) struct Move {
    pub(super) member: usize,
    pub(super) tokens: Vec<u32>,
    pub(super) phase: Phase,
    /// The checkpoint of the draft, and the number of accepted tokens.
    pub(super) draft: Option<(Checkpoint, usize)>,
}

impl Member {
    pub(super) fn goal_of(&self, now: &Move) -> usize {
        match now.phase {
            Phase::Prefill => self.goal,
            Phase::Decode => self.sequence.tokens().len() + now.tokens.len(),
        }
    }

    /// Reads the same tokens in the lone sequence, compares logits and removes drafts. Returns the number of compared
    /// rows.
    pub(super) fn follow(&mut self, now: &Move, found: &[Vec<u32>], runner: &mut Runner) -> usize {
        let start = self.alone.tokens().len();
        if now.phase == Phase::Prefill {
            let expected = read(runner, &mut self.alone, &now.tokens, now.phase, self.goal);
            self.unread.drain(..now.tokens.len());
            return self.check(&expected, found, start);
        }
        let kept = now.draft.as_ref().map_or(found.len(), |(_, kept)| *kept);
        let read_one = |(at, (token, found)): (usize, (&u32, &Vec<u32>))| {
            let expected = read(runner, &mut self.alone, &[*token], now.phase, at + 1);
            self.check(&expected, std::slice::from_ref(found), at)
        };
        (start..)
            .zip(now.tokens.iter().zip(found).take(kept))
            .map(read_one)
            .sum()
    }

    /// Compares logits from token `at` on if their bits must be equal. Returns the number of compared rows.
    fn check(&mut self, expected: &[Vec<u32>], found: &[Vec<u32>], at: usize) -> usize {
        let pages = [&self.sequence, &self.alone].map(|sequence| sequence.usage().pages);
        self.is_disturbed |= self.setting.lets_go && pages[0] != pages[1];
        if self.is_disturbed {
            return 0;
        }
        assert!(expected == found, "token {at}, {:?}", self.setting);
        found.len()
    }

    /// Reads generated tokens again that recurrent layers could not restore.
    pub(super) fn read_again(&mut self, runner: &mut Runner, tokens: &[u32]) {
        if tokens.is_empty() {
            return;
        }
        let work = Work {
            goal: self.sequence.tokens().len() + tokens.len(),
            sequence: &mut self.sequence,
            tokens,
            phase: Phase::Decode,
            finished_rows: FinishedRows::All,
        };
        let outcomes = runner.pass(&mut [work], &mut |_| ControlFlow::Continue(())).unwrap();
        if outcomes[0].is_some() {
            self.cut(0);
        }
    }

    /// Truncates both sequences to these tokens, or to none after an eviction.
    pub(super) fn cut(&mut self, tokens: usize) {
        self.unread.clear();
        let tokens = tokens.min(self.alone.tokens().len());
        for sequence in [&mut self.sequence, &mut self.alone] {
            // The truncation returns tokens that must be read again.
            drop(sequence.truncate(tokens).unwrap());
        }
        if self.sequence.tokens().len() != self.alone.tokens().len() {
            for sequence in [&mut self.sequence, &mut self.alone] {
                assert!(sequence.truncate(0).unwrap().is_empty());
            }
        }
        self.is_disturbed &= !self.sequence.tokens().is_empty();
    }
}

/// Reads tokens without faults and returns the logits of each.
fn read(runner: &mut Runner, sequence: &mut Sequence, tokens: &[u32], phase: Phase, goal: usize) -> Vec<Vec<u32>> {
    let work = Work {
        sequence,
        tokens,
        phase,
        goal,
        finished_rows: FinishedRows::All,
    };
    let outcomes = runner.pass(&mut [work], &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(outcomes[0].is_none(), "{outcomes:?}");
    let mut logits = Vec::new();
    runner.logits(0..tokens.len(), &mut logits).unwrap();
    logits.chunks(logits.len() / tokens.len()).map(bits).collect()
}
