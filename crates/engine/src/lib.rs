//! Layer-major prefill, decode, sampling and the memory plan
