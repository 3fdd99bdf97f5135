//! Tasks from files: the user's questions, one per line, each with its context and answers.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::corpus::Corpus;
use super::prompt::{Prompt, Watch};
use crate::EvalError;
use crate::error::plain_reason;
use crate::record::TextSummary;

/// Limit on the bytes of a file of questions with contexts.
const LARGEST_FILE_BYTES: u64 = 256 << 20;

/// Limit on the tokens of an answer, as in RULER's `qa` tasks.
const ANSWER_TOKENS: usize = 32;

/// Questions of a JSONL file. Each line is `{"context": "…", "question": "…", "answers": ["…"]}`; other fields are
/// ignored.
///
/// The model reads the context unchanged, then the question in the words of the wording's `qa` tasks. An answer
/// scores 1 if it contains any expected answer, ignoring case, and otherwise 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTask {
    path: PathBuf,
    questions: Vec<Question>,
    summary: TextSummary,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Question {
    /// Number of the line in the file, from 1.
    line: usize,
    fields: Fields,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Fields {
    context: String,
    question: String,
    answers: Vec<String>,
}

impl FileTask {
    /// Reads the questions and skips blank lines.
    ///
    /// # Errors
    /// [`EvalError::File`] names the first invalid line.
    pub fn read(path: &Path) -> Result<Self, EvalError> {
        let failed = |reason: String| EvalError::File {
            path: path.to_owned(),
            reason: format!(
                "{reason}; each line has to be {{\"context\": \"…\", \"question\": \"…\", \"answers\": [\"…\"]}}"
            ),
        };
        let text = riffle_files::read_text(path, LARGEST_FILE_BYTES);
        let text = text.map_err(|error| failed(plain_reason(&error.into())))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let questions = lines.map(|(number, line)| {
            let line_number = number + 1;
            let fields = Fields::parse(line).map_err(|reason| failed(format!("line {line_number}: {reason}")))?;
            Ok(Question {
                line: line_number,
                fields,
            })
        });
        let questions = questions.collect::<Result<Vec<_>, EvalError>>()?;
        if questions.is_empty() {
            return Err(failed("no questions in it".to_owned()));
        }
        Ok(Self {
            path: path.to_owned(),
            questions,
            summary: TextSummary::new(&path.display().to_string(), &text),
        })
    }

    /// Name, length and hash of the file.
    pub fn summary(&self) -> &TextSummary {
        &self.summary
    }

    /// Prompts of all lines, in order. `watch` may stop the model's chat template.
    ///
    /// # Errors
    /// [`EvalError::File`] names the first line that exceeds the engine's context.
    pub(crate) fn prompts(&self, corpus: &Corpus, watch: &mut Watch<'_>) -> Result<Vec<Prompt>, EvalError> {
        let options = corpus.engine().options();
        let most = match options.sequence.window {
            Some(_) => usize::MAX,
            None => corpus.engine().plan().context_tokens,
        };
        let prompts = self.questions.iter().map(|question| {
            let prompt = question.fields.prompt(corpus, watch)?;
            let tokens = prompt.most_tokens();
            if tokens <= most {
                return Ok(prompt);
            }
            Err(EvalError::File {
                path: self.path.clone(),
                reason: format!(
                    "line {} takes {tokens} tokens with question and answer, and the context holds {most}: shorten it, or use a model with a longer context",
                    question.line
                ),
            })
        });
        prompts.collect()
    }
}

impl Fields {
    fn parse(line: &str) -> Result<Self, String> {
        let fields: Self = serde_json::from_str(line).map_err(|error| {
            let reason = error.to_string();
            // Keeps the position within the line; the line number of a one-line text is wrong here.
            let plain = reason.split(" at line 1").next().unwrap_or_default();
            format!("{plain} (column {})", error.column())
        })?;
        for (name, is_blank) in [
            ("context", fields.context.trim().is_empty()),
            ("question", fields.question.trim().is_empty()),
        ] {
            if is_blank {
                return Err(format!("its {name} is empty"));
            }
        }
        match &*fields.answers {
            [] => Err("it has no answers".to_owned()),
            // Every answer holds an empty text.
            answers if answers.iter().any(|answer| answer.trim().is_empty()) => {
                Err("one of its answers is empty".to_owned())
            }
            _ => Ok(fields),
        }
    }

    fn prompt(&self, corpus: &Corpus, watch: &mut Watch<'_>) -> Result<Prompt, EvalError> {
        let wording = &corpus.wording.documents;
        let ask = wording.ask_given.fill(&[("question", &self.question)]);
        let frame = corpus.frame(&wording.before, &ask, watch)?;
        let mut document = frame.head;
        document.extend(corpus.encode(&self.context)?);
        Ok(corpus.prompt(document, vec![frame.tail], self.answers.clone(), ANSWER_TOKENS))
    }
}

impl fmt::Display for FileTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file:{}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        r#"{"context": "Ann keeps the key.", "question": "Who keeps the key?", "answers": ["Ann"], "id": 7}"#;

    fn read(text: &str) -> Result<FileTask, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.jsonl");
        std::fs::write(&path, text).unwrap();
        FileTask::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_questions_and_blank_lines_count_as_lines_alone() {
        let task = read(&format!("{GOOD}\n\n  \r\n{GOOD}\r\n")).unwrap();
        let lines: Vec<usize> = task.questions.iter().map(|question| question.line).collect();
        assert_eq!(lines, [1, 4]);
        assert_eq!(task.questions[0].fields, task.questions[1].fields);
        assert!(task.to_string().starts_with("file:") && task.to_string().ends_with("mine.jsonl"));
        assert_ne!(task.summary().xxh3, read(GOOD).unwrap().summary().xxh3);
    }

    #[test]
    fn a_bad_line_is_refused_by_its_number_in_one_line() {
        for (line, part) in [
            ("{", "EOF while parsing"),
            ("[1]", "invalid type"),
            (r#"{"context": "a", "question": "b"}"#, "missing field `answers`"),
            (r#"{"context": "a", "question": "b", "answers": "c"}"#, "invalid type"),
            (
                r#"{"context": "a", "question": "b", "answers": []}"#,
                "it has no answers",
            ),
            (
                r#"{"context": "a", "question": "b", "answers": ["c", " "]}"#,
                "one of its answers is empty",
            ),
            (
                r#"{"context": "a", "question": " ", "answers": ["c"]}"#,
                "its question is empty",
            ),
            (
                r#"{"context": "", "question": "b", "answers": ["c"]}"#,
                "its context is empty",
            ),
        ] {
            let message = read(&format!("{GOOD}\n{line}\n")).unwrap_err();
            assert!(message.contains(&format!("mine.jsonl: line 2: {part}")), "{message}");
            assert!(
                message.contains("\"answers\": [\"…\"]") && !message.contains('\n'),
                "{message}"
            );
        }
        assert!(read("\n \n").unwrap_err().contains("no questions in it"));
        let message = FileTask::read(Path::new("no-such.jsonl")).unwrap_err().to_string();
        assert!(message.contains("no-such.jsonl: no such file"), "{message}");
    }
}
