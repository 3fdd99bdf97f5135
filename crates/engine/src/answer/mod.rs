//! From logits to text: sampling, decoding, stop strings.

pub(crate) mod generate;
pub(crate) mod sampler;
pub(crate) mod stop;
