//! Tasks that policies are compared on.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use riffle_policy::Phase;

use crate::EvalError;
use crate::record::{AskPlace, NeedleKind};
use crate::tasks::{FileTask, OutsideTask, RulerTask, Task};

/// A needle test (`needle:KIND:PLACE`), a RULER task by its name, questions of a file (`file:PATH`), or a task from
/// another crate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompareTask {
    /// Needles of a kind, with the position of the question.
    Needle(NeedleKind, AskPlace),
    /// A RULER task.
    Ruler(RulerTask),
    /// Questions with their own contexts. Lengths, samples and depths do not apply.
    File(Arc<FileTask>),
    /// A task from another crate, made by [`CompareTask::outside`].
    Outside(OutsideTask),
}

impl CompareTask {
    /// A task from another crate. A prefill policy gets the document and the question in one prompt; for a decode
    /// policy the question follows later.
    pub fn outside(task: &'static dyn Task) -> Self {
        Self::Outside(OutsideTask::new(task))
    }

    /// True if the task distinguishes policies of a phase. For decode, the question must follow token by token.
    pub(crate) fn suits(&self, phase: Phase, full: bool) -> bool {
        match self {
            Self::Needle(_, place) => full || phase == Phase::Prefill || *place == AskPlace::Late,
            Self::Ruler(_) | Self::File(_) | Self::Outside(_) => true,
        }
    }

    /// Prompts of one sample.
    pub(crate) fn prompts(&self, depths: usize) -> usize {
        match self {
            Self::Needle(NeedleKind::Single, AskPlace::End | AskPlace::Late)
            | Self::Needle(_, AskPlace::End | AskPlace::SecondTurn) => depths,
            _ => 1,
        }
    }
}

impl fmt::Display for CompareTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Needle(kind, place) => write!(f, "needle:{kind}:{place}"),
            Self::Ruler(task) => task.fmt(f),
            Self::File(task) => task.fmt(f),
            Self::Outside(task) => task.fmt(f),
        }
    }
}

impl FromStr for CompareTask {
    type Err = EvalError;

    fn from_str(text: &str) -> Result<Self, EvalError> {
        if let Some(path) = text.strip_prefix("file:") {
            return Ok(Self::File(Arc::new(FileTask::read(Path::new(path))?)));
        }
        let text = &*text.to_ascii_lowercase();
        let mut parts = text.split(':');
        if parts.next() != Some("needle") {
            return text.parse().map(Self::Ruler).map_err(|_| unknown(text));
        }
        let kind = parts.next().map_or(Ok(NeedleKind::MultiKey), str::parse)?;
        let place = parts.next().map_or(Ok(AskPlace::Late), str::parse)?;
        if parts.next().is_some() || !kind.can_be_asked(place) {
            return Err(EvalError::Option(format!(
                "task {text:?}: needle:KIND:PLACE has two parts, and in mid-document only single, multi-key and cross-file can be asked for, in a second turn only multi-key"
            )));
        }
        Ok(Self::Needle(kind, place))
    }
}

fn unknown(text: &str) -> EvalError {
    let kinds = NeedleKind::ALL.map(|kind| kind.to_string()).join(", ");
    let places = AskPlace::ALL.map(|place| place.to_string()).join(", ");
    EvalError::Option(format!(
        "unknown task {text:?}; known: needle:KIND:WHEN with KIND one of {kinds} and WHEN one of {places}; file:PATH.jsonl; {}",
        RulerTask::names()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_spelled_as_they_print() {
        for text in [
            "needle:single:end",
            "needle:multi-key:middle",
            "needle:cross-file:middle",
            "vt",
            "qa_2",
        ] {
            assert_eq!(text.parse::<CompareTask>().unwrap().to_string(), text);
        }
        assert_eq!(
            "Needle:Single:END".parse::<CompareTask>().unwrap().to_string(),
            "needle:single:end"
        );
        assert_eq!(
            "needle".parse::<CompareTask>().unwrap().to_string(),
            "needle:multi-key:late"
        );
        for text in [
            "needle:single:second-turn",
            "needle:many",
            "needle:single:end:x",
            "qa_3",
            "needles",
            "needlework:single",
        ] {
            assert!(text.parse::<CompareTask>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_unknown_task_is_answered_with_every_form_of_task() {
        let message = "mytask".parse::<CompareTask>().unwrap_err().to_string();
        let places = AskPlace::ALL.map(|place| place.to_string());
        let kinds = NeedleKind::ALL.map(|kind| kind.to_string());
        let ruler = RulerTask::ALL.map(|task| task.to_string());
        for form in ["\"mytask\"", "needle:KIND:WHEN", "file:PATH.jsonl"]
            .map(str::to_owned)
            .iter()
            .chain(&places)
            .chain(&kinds)
            .chain(&ruler)
        {
            assert!(message.contains(form), "{form}: {message}");
        }
    }
}
