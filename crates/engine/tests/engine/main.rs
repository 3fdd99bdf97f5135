//! Sessions of an engine: reading, keeping, sharing, evicting and freeing.

mod adapters;
mod answer;
mod attention_watch;
mod cached_attention;
mod compress;
mod delta;
// An emulated device compiles its kernels with g++.
#[cfg(unix)]
mod device;
#[cfg(unix)]
mod device_flow;
#[cfg(unix)]
mod device_summaries;
mod draft;
mod encode;
mod eviction;
mod experts;
mod far;
#[cfg(target_os = "linux")]
mod faults;
mod fork;
mod gemma4;
mod hybrid;
mod joined;
mod layer_attention;
mod long_rotation;
mod loops;
mod mixed;
mod mixed_states;
mod other_mixers;
mod plan;
mod policies;
mod precision;
mod predictor;
mod prefix;
mod profile;
mod questions;
mod rotation;
mod run;
mod sampler;
mod saved;
mod scheduler;
mod session;
mod sliding;
mod spelling;
#[path = "../testing/mod.rs"]
mod testing;
mod tiers;
mod token_selection;
