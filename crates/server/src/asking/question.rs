//! A conversation to answer, from any API.

use std::sync::Arc;

use serde_json::json;

use super::Wishes;
use super::prompt::{Conversation, count, prompt};
use crate::api::answers::Answers;
use crate::api::openai::Tools;
use crate::app::App;
use crate::failure::Failure;
use crate::forms::Form;
use crate::forms::calls::form_beside;
use crate::speech::{KnownTools, Speech};

/// A conversation with all constraints on its answer.
pub(crate) struct Question {
    pub(crate) wishes: Wishes,
    pub(crate) conversation: Conversation,
    /// The form of the answer, and its field.
    form: Option<(Form, String)>,
    /// True if the answer is requested JSON: it is never a call without marks.
    gives_data: bool,
    /// True if the form applies only to calls, and the answer may be text.
    is_free_form: bool,
    tools: KnownTools,
    is_single_call: bool,
    /// Requested number of answers.
    pub(crate) choices: usize,
}

/// Running answers, and the parser of their text.
pub(crate) struct OngoingAnswers {
    pub(crate) wishes: Wishes,
    pub(crate) answers: Answers,
    pub(crate) speech: Speech,
    pub(crate) prompt_tokens: usize,
}

impl Question {
    /// A question with one answer. `form` comes with its field's name. Tools may require a form too: an answer that
    /// must be a call has the form of the call.
    ///
    /// Tools and a form that one answer cannot satisfy together.
    pub(crate) fn new(
        app: &App,
        wishes: Wishes,
        conversation: Conversation,
        form: Option<(Form, String)>,
        tools: Tools,
    ) -> Result<Self, Failure> {
        let is_free_form = form.is_none() && !tools.is_required;
        let gives_data = matches!(form, Some((Form::JsonObject | Form::Schema(_), _))) && !tools.is_required;
        let form = match (form, tools.form) {
            (Some((_, place)), tools_form @ Some(_)) if tools.is_required => {
                wishes
                    .warnings
                    .add(&place, "the answer has to be a call: the form was left out");
                tools_form.map(|form| (form, "tool_choice".to_owned()))
            }
            // With optional strict tools the answer is a call or the requested JSON.
            (Some((form, place)), Some(_)) => {
                let schema = match form {
                    Form::Schema(schema) => schema,
                    Form::JsonObject => json!({"type": "object"}),
                    Form::Pattern(_) | Form::Grammar(_) => {
                        return Err(Failure::field(
                            place,
                            "strict tools that may be called stand beside JSON alone: leave strict out, or ask for JSON",
                        ));
                    }
                };
                Some((form_beside(app, &tools.known.shown(), schema)?, place))
            }
            (None, Some(form)) => Some((form, "tool_choice".to_owned())),
            (form, None) => form,
        };
        Ok(Self {
            wishes,
            conversation,
            form,
            gives_data,
            is_free_form,
            tools: tools.known,
            is_single_call: tools.is_single,
            choices: 1,
        })
    }

    /// The number of tokens of the prompt.
    pub(crate) async fn count(self, app: &Arc<App>) -> Result<usize, Failure> {
        count(app, self.conversation).await
    }

    /// Requests the answers. Returns after the scheduler has accepted the request.
    pub(crate) async fn ask(mut self, app: &Arc<App>) -> Result<OngoingAnswers, Failure> {
        let prompt = prompt(app, self.conversation).await?;
        let prompt_tokens = prompt.tokens.len();
        // An optional call may follow a thought of any length.
        self.wishes.has_thought_first = prompt.is_thinking && !self.is_free_form;
        self.wishes.keep_to(app, self.form).await?;
        Ok(OngoingAnswers {
            answers: self.wishes.ask(app, &[prompt.tokens], self.choices).await?,
            speech: Speech::new(app.markup, self.tools, prompt.is_thinking)
                .with_single_call(self.is_single_call)
                .with_unmarked_calls(!self.gives_data),
            wishes: self.wishes,
            prompt_tokens,
        })
    }
}
