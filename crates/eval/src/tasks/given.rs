//! The user's questions about documents.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::error::plain_reason;

/// Limit on the bytes of a file of questions with documents.
const LARGEST_QUESTIONS_BYTES: u64 = 256 << 20;

/// A question, its answers and its documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenQuestion {
    /// The question.
    pub question: String,
    /// Accepted answers.
    pub answers: Vec<String>,
    /// The needed documents: one for `qa_1`, two or more for `qa_2`.
    pub documents: Vec<String>,
}

/// Reads a JSON array of [`GivenQuestion`]s.
///
/// # Errors
/// [`EvalError::File`] for a missing file, another format, or a question without answer or document.
pub fn read_questions(path: &Path) -> Result<Vec<GivenQuestion>, EvalError> {
    let failed = |reason: String| EvalError::File {
        path: path.to_owned(),
        reason: format!(
            "{reason}; --questions takes a JSON array of {{\"question\": \"…\", \"answers\": [\"…\"], \"documents\": [\"…\"]}}"
        ),
    };
    let text = riffle_files::read_text(path, LARGEST_QUESTIONS_BYTES);
    let text = text.map_err(|error| failed(plain_reason(&error.into())))?;
    let questions: Vec<GivenQuestion> = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
    if questions.is_empty() {
        return Err(failed("no questions in it".to_owned()));
    }
    let empty = questions
        .iter()
        .position(|question| question.answers.is_empty() || question.documents.is_empty());
    match empty {
        Some(number) => Err(failed(format!(
            "question {} has no answers or no documents",
            number + 1
        ))),
        None => Ok(questions),
    }
}
