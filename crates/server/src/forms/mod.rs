//! Structured output: constrains answers to a JSON schema, a pattern or a grammar, with `llguidance`.
//!
//! A form is prepared once, and answers start from copies of it. A separate thread computes the allowed next tokens
//! while the engine computes logits.

mod bounds;
pub(crate) mod calls;
mod compile;
mod constraint;
mod schema;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod thoughts;
mod vocabulary;
mod worker;

use std::sync::{Arc, OnceLock};

use axum::http::StatusCode;
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use riffle_engine::{AnswerForm, Engine};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::fields::{Fields, text_of};
use compile::Compilers;
use constraint::PreparedForm;
use worker::Worker;

/// The required form of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// Any JSON object.
    JsonObject,
    /// JSON of a schema.
    Schema(Value),
    /// Text that a regular expression matches completely.
    Pattern(String),
    /// Text of a grammar in llguidance's variant of Lark.
    Grammar(String),
}

impl Form {
    /// JSON of a schema, which may be given as text.
    ///
    /// # Errors
    /// Text that is not JSON; `place` is its field.
    pub fn schema(schema: Value, place: &str) -> Result<Self, Failure> {
        let Value::String(text) = schema else {
            return Ok(Self::Schema(schema));
        };
        let parsed = crate::json::parse(text.as_bytes());
        parsed
            .map(Self::Schema)
            .map_err(|error| Failure::field(place, format!("the schema is not valid JSON: {error}")))
    }

    /// One of several texts.
    ///
    /// # Errors
    /// For an empty list; `place` is the field of the texts.
    pub fn choice(texts: &[String], place: &str) -> Result<Self, Failure> {
        if texts.is_empty() {
            return Err(Failure::field(place, "it must have at least one choice"));
        }
        let texts = texts.iter().map(|text| json!(text).to_string());
        Ok(Self::Grammar(format!(
            "start: {}",
            texts.collect::<Vec<_>>().join(" | ")
        )))
    }
}

/// Prepares forms for one model.
pub(crate) struct Forms {
    engine: Arc<Engine>,
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
    limits: crate::Limits,
    compilers: Compilers,
    worker: Worker,
}

impl Forms {
    pub(crate) fn new(engine: &Arc<Engine>, limits: crate::Limits) -> std::io::Result<Self> {
        Ok(Self {
            engine: Arc::clone(engine),
            factory: OnceLock::new(),
            limits,
            compilers: Compilers::new(),
            worker: Worker::start()?,
        })
    }

    /// Prepares a form; `place` is the field it came from.
    pub(crate) async fn prepare(self: &Arc<Self>, form: Form, place: &str) -> Result<Arc<dyn AnswerForm>, Failure> {
        let most = self.limits.form_bytes;
        let bytes = match &form {
            Form::JsonObject => 0,
            Form::Schema(schema) => schema.to_string().len(),
            Form::Pattern(text) | Form::Grammar(text) => text.len(),
        };
        if bytes > most {
            return Err(Failure::field(
                place,
                format!("it has {bytes} bytes, {most} are the limit"),
            ));
        }
        let (own, at) = (Arc::clone(self), place.to_owned());
        let prepare = move || own.prepare_now(form, &at);
        self.compilers.run(place, self.limits.form_time, prepare).await
    }

    /// Prepares a form on this thread, whose stack has [`bounds::STACK_BYTES`].
    fn prepare_now(&self, form: Form, place: &str) -> Result<Arc<dyn AnswerForm>, Failure> {
        let factory = self.factory.get_or_init(|| vocabulary::factory(&self.engine));
        let factory = factory
            .as_ref()
            .map_err(|problem| Failure::new(StatusCode::NOT_IMPLEMENTED, problem.clone()))?;
        let grammars = grammars_of(form).map_err(|problem| refused(place, problem))?;
        let mut problem = None;
        for grammar in grammars {
            match matcher_of(factory, grammar) {
                Ok(matcher) => return Ok(Arc::new(PreparedForm::new(matcher, self.worker.clone()))),
                Err(found) => problem = Some(found),
            }
        }
        Err(refused(place, one_line(&problem.unwrap_or_default())))
    }
}

/// Compiles a grammar.
fn matcher_of(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher, String> {
    let matcher = Matcher::new(factory.create_parser(grammar));
    if let Some(problem) = matcher.get_error() {
        return Err(problem);
    }
    // The first mask is computed here, so that too wide a form fails now and not in an answer.
    match matcher.deep_clone().compute_mask_or_eos() {
        Ok(_) => Ok(matcher),
        Err(error) if error.to_string().contains("NoExtensionBias") => Err("no text fits it".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn refused(place: &str, problem: String) -> Failure {
    Failure::field(place, problem).with_code("unsupported_schema")
}

/// The order of names in closed objects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NameOrder {
    Any,
    Declared,
}

/// A form in llguidance's terms: the first of these grammars that compiles.
///
/// # Errors
/// A form beyond the bounds, or one that cannot be enforced exactly.
fn grammars_of(form: Form) -> Result<Vec<TopLevelGrammar>, String> {
    Ok(match form {
        Form::JsonObject => vec![TopLevelGrammar::from_json_schema(with_options(
            json!({"type": "object"}),
        )?)],
        Form::Schema(mut schema) => {
            refuse_options(&schema)?;
            bounds::check_schema(&schema)?;
            schema::prepare(&mut schema)?;
            let schema = with_options(schema)?;
            let any = schema::any_order(&schema).map(TopLevelGrammar::from_lark);
            any.into_iter()
                .chain([TopLevelGrammar::from_json_schema(schema)])
                .collect()
        }
        Form::Pattern(pattern) => {
            bounds::check_pattern(&pattern)?;
            vec![TopLevelGrammar::from_regex(&pattern)]
        }
        Form::Grammar(grammar) => {
            let any = bounds::prepared_grammar(&grammar, NameOrder::Any)?;
            let declared = bounds::prepared_grammar(&grammar, NameOrder::Declared)?;
            let any = (any != declared).then_some(any);
            any.into_iter()
                .chain([declared])
                .map(TopLevelGrammar::from_lark)
                .collect()
        }
    })
}

/// The field of a schema with its options.
const OPTIONS: &str = "x-guidance";

/// Levels of indentation if a schema sets no bound, and the limit if it does.
const OPEN_LEVELS: usize = 6;
const MOST_LEVELS: usize = 16;

/// Maximum number of columns of indentation per level.
const COLUMNS_PER_LEVEL: usize = 4;

/// A schema with its reading options. A space is allowed only after a colon or a comma. A line break is allowed between
/// any two parts of JSON, and the next line is indented by no more than the schema's depth. Without these bounds, a
/// small model with greedy sampling would continue with white space for long.
///
/// # Errors
/// For references beyond a bound.
fn with_options(schema: Value) -> Result<Value, String> {
    // One level more, because the value may be inside a call.
    let levels = match schema::levels(&schema)? {
        Some(levels) => (levels + 1).min(MOST_LEVELS),
        None => OPEN_LEVELS,
    };
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        schema => schema,
    };
    if let Some(fields) = schema.as_object_mut() {
        let options = json!({
            "whitespace_pattern": line_break(levels),
            "key_separator": ": ?",
            "item_separator": ", ?",
        });
        fields.insert(OPTIONS.to_owned(), options);
    }
    Ok(schema)
}

/// A pattern of a line break and the indentation of up to `levels` levels.
fn line_break(levels: usize) -> String {
    format!(r"\n[ \t]{{0,{}}}", levels * COLUMNS_PER_LEVEL)
}

/// A schema may not change its own options.
fn refuse_options(schema: &Value) -> Result<(), String> {
    match schema.get(OPTIONS) {
        None => Ok(()),
        Some(_) => Err(format!("{OPTIONS} is not taken: a schema is read as it stands")),
    }
}

fn one_line(problem: &str) -> String {
    const LONGEST: usize = 300;
    if problem.contains("coerce_one_of") {
        // llguidance names an option that clients cannot set.
        return "oneOf: it cannot be told that its alternatives exclude one another: use anyOf".to_owned();
    }
    if problem.contains("Current row has") {
        return "too many things may come first: ask for fewer alternatives or optional properties".to_owned();
    }
    let line = problem.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        None => line,
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

/// Takes `response_format`, and other servers' fields of patterns and grammars.
pub(crate) fn take_form(fields: &mut Fields) -> Result<Option<(Form, String)>, Failure> {
    let mut forms = Vec::new();
    let place = fields.name("response_format");
    if let Some(mut format) = fields.object("response_format")? {
        if let Some(form) = form_of(&mut format, &place)? {
            forms.push((form, place));
        }
        format.finish()?;
    }
    if let Some(mut outputs) = fields.object("structured_outputs")? {
        let place = fields.name("structured_outputs");
        take_outputs(&mut outputs, "", &place, &mut forms)?;
        outputs.finish()?;
    }
    take_outputs(fields, "guided_", "", &mut forms)?;
    if let Some(schema) = fields.value("json_schema") {
        forms.push((Form::Schema(schema), fields.name("json_schema")));
    }
    fields.refuse(
        "grammar",
        &[json!("")],
        "grammars in GBNF are not taken: send one in Lark as response_format {\"type\": \"grammar\", \"grammar\": …}",
    )?;
    // Clients send one form under the names of several servers.
    forms.dedup_by(|next, before| next.0 == before.0);
    match forms.len() {
        0 | 1 => Ok(forms.pop()),
        _ => Err(Failure::field(
            forms.swap_remove(1).1,
            "the request asks for another form already: ask for one",
        )),
    }
}

/// vLLM's fields of forms.
fn take_outputs(
    fields: &mut Fields,
    prefix: &str,
    place: &str,
    forms: &mut Vec<(Form, String)>,
) -> Result<(), Failure> {
    let at = |name: &str| match place {
        "" => format!("{prefix}{name}"),
        place => format!("{place}.{name}"),
    };
    if let Some(schema) = fields.value(&format!("{prefix}json")) {
        forms.push((Form::schema(schema, &at("json"))?, at("json")));
    }
    if let Some(pattern) = fields.text(&format!("{prefix}regex"))? {
        forms.push((Form::Pattern(pattern), at("regex")));
    }
    if let Some(grammar) = fields.text(&format!("{prefix}grammar"))? {
        forms.push((Form::Grammar(grammar), at("grammar")));
    }
    if let Some(choices) = fields.list(&format!("{prefix}choice"))? {
        let choices = choices.into_iter().map(|choice| text_of(choice, &at("choice")));
        let choices = choices.collect::<Result<Vec<_>, _>>()?;
        forms.push((Form::choice(&choices, &at("choice"))?, at("choice")));
    }
    Ok(())
}

/// The form of an object with a `type`.
pub(crate) fn form_of(format: &mut Fields, place: &str) -> Result<Option<Form>, Failure> {
    match format.required_text("type")?.as_str() {
        "text" => Ok(None),
        "json_object" => match format.value("schema") {
            Some(schema) => Ok(Some(Form::Schema(schema))),
            None => Ok(Some(Form::JsonObject)),
        },
        "json_schema" => {
            let schema = match format.object("json_schema")? {
                // Nested, as in chat completions.
                Some(mut nested) => {
                    nested.pass_over(&["name", "description", "strict"]);
                    let schema = nested.value("schema");
                    nested.finish()?;
                    schema
                }
                // Responses and llama.cpp have the schema here.
                None => {
                    format.pass_over(&["name", "description", "strict"]);
                    format.value("schema")
                }
            };
            let schema = schema
                .ok_or_else(|| Failure::field(format!("{place}.json_schema.schema"), "this field is required"))?;
            Ok(Some(Form::Schema(schema)))
        }
        "regex" => Ok(Some(Form::Pattern(format.required_text("pattern")?))),
        "grammar" => Ok(Some(Form::Grammar(format.required_text("grammar")?))),
        other => Err(Failure::field(
            format!("{place}.type"),
            format!("{other:?} is not known: use text, json_object, json_schema, regex or grammar"),
        )),
    }
}
