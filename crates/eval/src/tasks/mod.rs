//! Tasks: prompts from any text, with known answers.

mod code;
mod corpus;
mod file;
mod filler;
mod given;
mod needle;
mod outside;
mod prompt;
mod ruler;
mod score;
mod task;
mod wording;

pub use corpus::{Corpus, digest};
pub use file::FileTask;
pub use given::{GivenQuestion, read_questions};
pub(crate) use needle::NeedleTest;
pub use outside::{HiddenFact, OutsideTask, Task, TaskPrompt};
pub(crate) use prompt::{Cost, Prompt, QuestionPlace, Reader, Watch, go_on, interrupted, most_likely};
pub use ruler::RulerTask;
pub(crate) use ruler::RulerTest;
pub(crate) use score::match_any;
pub(crate) use task::check_lengths;
pub use task::{NeedleOptions, RulerOptions, needle, ruler};
pub use wording::{Ask, ChainAnswer, DocumentsWording, ListWording, NiahWording, VariablesWording, Wording};
