//! What the laboratory measures.

mod device_rates;
mod logits;
mod needle;
mod outside;
mod tasks;
