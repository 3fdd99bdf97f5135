//! `/infill` of llama.cpp's server.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::llama_cpp::Completion;
use super::{read, respond};
use crate::app::App;
use crate::asking::continuation::Prompt;
use crate::asking::infill::{Gap, infill_tokens};
use crate::failure::{Failure, Shape};
use crate::fields::Fields;

/// Name of a file without a name.
const UNNAMED: &str = "tmp";

/// Maximum number of further files.
const MOST_FILES: usize = 1024;

/// Fields of editors that do not change the text: samplers, indentation and time limits.
const WITHOUT_EFFECT: [&str; 4] = ["samplers", "n_indent", "t_max_prompt_ms", "t_max_predict_ms"];

pub(crate) async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(Shape::OpenAi, begin(app, request).await)
}

async fn begin(app: Arc<App>, request: Request) -> Result<Response, Failure> {
    let completion = read(&app, request, |app, fields| {
        let gap = take_gap(app, fields)?;
        Completion::take(app, fields, vec![Prompt::Gap(Box::new(gap))])
    });
    completion.await?.answer(app).await
}

fn take_gap(app: &App, fields: &mut Fields) -> Result<Gap, Failure> {
    infill_tokens(&app.engine)?;
    let mut prefix = fields.required_text("input_prefix")?;
    let suffix = fields.required_text("input_suffix")?;
    // The beginning of the text in the gap.
    prefix.push_str(&fields.text("prompt")?.unwrap_or_default());
    fields.pass_over(&WITHOUT_EFFECT);
    Ok(Gap {
        prefix,
        suffix,
        files: take_files(fields)?,
    })
}

/// Takes `input_extra`: further files.
fn take_files(fields: &mut Fields) -> Result<Vec<(String, String)>, Failure> {
    let list = fields.list("input_extra")?.unwrap_or_default();
    if list.len() > MOST_FILES {
        return Err(Failure::field(
            "input_extra",
            format!("at most {MOST_FILES} files are taken"),
        ));
    }
    let warnings = fields.warnings().clone();
    let files = list.into_iter().enumerate().map(|(at, file)| {
        let mut file = Fields::from_value(file, &format!("input_extra[{at}]"), &warnings)?;
        let name = file.text("filename")?.unwrap_or_else(|| UNNAMED.to_owned());
        let text = file.required_text("text")?;
        // llama.vim sends the time at which it read a file.
        file.ignore_rest_but(&["time"]);
        Ok((name, text))
    });
    files.collect()
}
