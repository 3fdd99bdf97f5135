//! Test files of tensors.

use std::fs;
use std::path::Path;

/// Writes a safetensors file with random f32 values. Matrices preserve the scale of their inputs; vectors are near 1.
pub(crate) fn write_tensors(path: &Path, tensors: &[(String, Vec<usize>)], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, shape) in tensors {
        let begin = data.len();
        let (mean, size) = match shape[..] {
            [_] => (1.0, 0.1),
            _ => (0.0, 1.0 / (shape[shape.len() - 1] as f32).sqrt()),
        };
        data.extend((0..shape.iter().product()).flat_map(|_| (mean + size * next()).to_le_bytes()));
        let end = data.len();
        entries.push(format!(
            r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        ));
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(data);
    fs::write(path, file).expect("a file");
}
