//! What the laboratory measures.

mod logits;
mod needle;
mod outside;
mod tasks;
