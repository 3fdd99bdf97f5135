//! Packed weights times activations
