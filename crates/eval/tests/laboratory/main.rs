//! Tests of the laboratory's measurements.

mod logits;
mod needle;
mod outside;
mod quantize;
mod tasks;
