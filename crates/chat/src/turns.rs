//! Undo, retry, and branches.

use crate::branch::Branch;
use crate::conversation::{Conversation, MOST_BRANCHES, Observe};
use crate::error::ChatError;
use crate::report::TurnReport;
use riffle_engine::Sequence;

/// The part of the conversation that an undo removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undone {
    /// The latest turn.
    Turn {
        /// Message of the turn.
        message: String,
        /// Tokens of earlier turns that the next message reads again.
        again_tokens: usize,
    },
    /// The attached text.
    Document {
        /// Name of the text.
        name: String,
    },
}

impl Conversation {
    /// Removes the last attached text; without one, removes the latest turn and attaches its documents again.
    ///
    /// # Errors
    /// [`ChatError::Nothing`] at the beginning; [`ChatError::Engine`] if the pages cannot be truncated.
    pub fn undo(&mut self) -> Result<Undone, ChatError> {
        let branch = &mut self.branch;
        branch.unanswered = None;
        if let Some(document) = branch.attached.pop() {
            return Ok(Undone::Document { name: document.name });
        }
        let turn = branch.turns.pop().ok_or(ChatError::Nothing("take back"))?;
        branch.transcript.cut(turn.begin);
        branch.prompt_end = None;
        branch.last = None;
        let mut again_tokens = 0;
        if let Some(session) = &mut branch.session
            && turn.documents.is_empty()
        {
            again_tokens = Sequence::truncate(session.sequence_mut(), turn.held_tokens)?.len();
        }
        // Pages of the documents stay, because the next message needs them too.
        branch.attached = turn.documents;
        Ok(Undone::Turn {
            message: turn.message,
            again_tokens,
        })
    }

    /// Answers the latest message again with other random draws. A message whose reading stopped is read further.
    ///
    /// # Errors
    /// [`ChatError::Nothing`] before the first message; otherwise the errors of [`Self::ask`].
    pub fn retry(&mut self, observe: &mut Observe<'_>) -> Result<TurnReport, ChatError> {
        if let Some(message) = self.branch.unanswered.take() {
            return self.answer(message, 0, observe);
        }
        let branch = &mut self.branch;
        let mut turn = branch.turns.pop().ok_or(ChatError::Nothing("answer again"))?;
        turn.retries += 1;
        let rolled_back = match (&mut branch.session, &branch.prompt_end) {
            (Some(session), Some(prompt_end)) => session.roll_back(prompt_end, 0).is_ok(),
            _ => false,
        };
        if rolled_back {
            branch.transcript.cut(turn.prompt);
            branch.unanswered = Some(turn.message.clone());
            return self.write_again(turn, observe);
        }
        branch.transcript.cut(turn.begin);
        // Newer attached documents follow the turn's own.
        branch.attached.splice(0..0, turn.documents);
        self.answer(turn.message, turn.retries, observe)
    }

    /// Removes the turns and documents of the current branch. Instructions and settings stay.
    pub fn clear(&mut self) {
        self.branch = Branch::named(std::mem::take(&mut self.branch.name));
    }

    /// Continues in a copy of the current branch that shares its pages. Without a name the copy gets a number.
    /// Returns the name.
    ///
    /// # Errors
    /// [`ChatError::BranchExists`], [`ChatError::TooManyBranches`]; [`ChatError::Engine`] if a policy cannot be
    /// copied.
    pub fn fork(&mut self, name: Option<&str>) -> Result<String, ChatError> {
        if self.others.len() + 1 >= MOST_BRANCHES {
            return Err(ChatError::TooManyBranches(MOST_BRANCHES));
        }
        let is_taken = |name: &str| {
            self.others
                .iter()
                .chain([&self.branch])
                .any(|branch| branch.name == name)
        };
        let name = match name {
            Some(name) if is_taken(name) => return Err(ChatError::BranchExists(name.to_owned())),
            Some(name) => name.to_owned(),
            None => loop {
                self.branches_made += 1;
                let name = self.branches_made.to_string();
                if !is_taken(&name) {
                    break name;
                }
            },
        };
        let from = &mut self.branch;
        let copy = Branch {
            name: name.clone(),
            turns: from.turns.clone(),
            attached: from.attached.clone(),
            unanswered: from.unanswered.clone(),
            transcript: from.transcript.clone(),
            session: from.session.as_mut().map(|session| session.fork()).transpose()?,
            prompt_end: from.prompt_end.clone(),
            last: from.last.clone(),
        };
        let from = std::mem::replace(from, copy);
        self.others.push(from);
        Ok(name)
    }

    /// Continues in another branch.
    ///
    /// # Errors
    /// [`ChatError::NoBranch`].
    pub fn switch(&mut self, name: &str) -> Result<(), ChatError> {
        if self.branch.name == name {
            return Ok(());
        }
        let place = self.place_of(name)?;
        std::mem::swap(&mut self.branch, &mut self.others[place]);
        if let (Some(now), Some(before)) = (&mut self.branch.session, &mut self.others[place].session) {
            now.take_scratch(before);
        }
        Ok(())
    }

    /// Removes a branch and the pages that only it uses.
    ///
    /// # Errors
    /// [`ChatError::NoBranch`], [`ChatError::CurrentBranch`].
    pub fn drop_branch(&mut self, name: &str) -> Result<(), ChatError> {
        if self.branch.name == name {
            return Err(ChatError::CurrentBranch(name.to_owned()));
        }
        let place = self.place_of(name)?;
        self.others.remove(place);
        Ok(())
    }

    fn place_of(&self, name: &str) -> Result<usize, ChatError> {
        let place = self.others.iter().position(|branch| branch.name == name);
        place.ok_or_else(|| {
            let branches = self.report().branches;
            let names: Vec<String> = branches.into_iter().map(|branch| branch.name).collect();
            ChatError::NoBranch {
                name: name.to_owned(),
                known: names.join(", "),
            }
        })
    }
}
