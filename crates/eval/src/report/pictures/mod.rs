//! Results as pictures.

mod audit;
mod comparison;
mod context;
mod model;
mod perplexity;
mod tasks;

use crate::pictures::Picture;
use crate::record::{Record, Results};

pub(super) fn draw(record: &Record) -> Vec<(String, Picture)> {
    let on = record.header.model.as_ref().map_or(String::new(), |model| {
        let size = riffle_engine::human_bytes(model.weights_bytes);
        format!("Model “{}” ({}, {size}). ", model.name, model.architecture)
    });
    match &record.results {
        Results::Needle(needle) => tasks::needle(needle, &on),
        Results::Ruler(ruler) => vec![("scores".to_owned(), tasks::ruler(ruler, &on))],
        Results::Perplexity(perplexity) => perplexity::perplexity(perplexity, &on),
        Results::Comparison(comparison) => comparison::comparison(comparison, &on),
        Results::Audit(audit) => audit::audit(audit, &on),
        Results::Context(context) => context::context(context, &on),
        Results::Model(model) => model::model(model, &on),
        // The tables of these results suffice.
        Results::Batch(_)
        | Results::Draft(_)
        | Results::Policies(_)
        | Results::Attention(_)
        | Results::Device(_)
        | Results::Kv(_) => Vec::new(),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
