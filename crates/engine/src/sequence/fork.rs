//! Sequences that begin with another's tokens.

use crate::sequence::Turn;
use crate::{EngineError, Sequence, SequenceOptions};

/// A fork with new decode policies and counts.
pub(crate) fn fork_pages(sequence: &mut Sequence, options: SequenceOptions) -> Result<Sequence, EngineError> {
    let mut fork = fork_text(sequence, options)?;
    let prefill = sequence.attention.policies.prefill.iter();
    for (from, to) in prefill.zip(fork.attention.policies.prefill.iter_mut()) {
        to.restore_state(&from.save_state())?;
    }
    let (from, to) = (&mut sequence.answer, &mut fork.answer);
    to.drawn = from.drawn;
    to.logits.clone_from(&from.logits);
    if let Some(reader) = &mut from.drafts.reader {
        to.drafts.reader = Some(Box::new(reader.fork()?));
    }
    to.drafts.predictor = to.drafts.predictor.take().and(from.drafts.predictor.clone());
    Ok(fork)
}

/// An empty sequence of the same pool.
pub(super) fn beside_with(sequence: &Sequence, options: SequenceOptions) -> Result<Sequence, EngineError> {
    let (cache, reader) = (sequence.pool().cache(), sequence.attention.reader.beside());
    Sequence::over(&sequence.setting.engine, cache, reader, options)
}

/// An empty sequence with the same rotation as another, at any length. The options must leave attention dense.
pub(crate) fn beside_to_measure(sequence: &Sequence, options: SequenceOptions) -> Result<Sequence, EngineError> {
    let mut beside = beside_with(sequence, options)?;
    beside.set_turn(Turn {
        is_fixed: true,
        ..sequence.text.turn
    });
    Ok(beside)
}

/// A fork with a fixed rotation, at any length, and with dense attention.
pub(crate) fn fork_to_measure(sequence: &mut Sequence) -> Result<Sequence, EngineError> {
    let mut fork = fork_text(sequence, SequenceOptions::default())?;
    fork.set_turn(Turn {
        is_fixed: true,
        ..sequence.text.turn
    });
    Ok(fork)
}

/// A fork with the same tokens and pages; its policies start without knowledge of them.
fn fork_text(sequence: &mut Sequence, options: SequenceOptions) -> Result<Sequence, EngineError> {
    let reader = sequence.attention.reader.fork();
    let mut fork = Sequence::over(
        &sequence.setting.engine,
        sequence.attention.cache.fork(),
        reader,
        options,
    )?;
    fork.recurrence.copy_from(&sequence.recurrence)?;
    fork.attention.copy_placement(&sequence.attention);
    fork.text = sequence.text.clone();
    fork.set_turn(sequence.text.turn);
    Ok(fork)
}
