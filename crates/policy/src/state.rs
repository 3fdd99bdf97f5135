//! The state of policies as bytes.

/// Writes numbers as u64 and scores as f32, each list preceded by its length.
pub(crate) fn write(numbers: &[usize], scores: &[f32]) -> Vec<u8> {
    let mut bytes = (numbers.len() as u64).to_le_bytes().to_vec();
    bytes.extend(numbers.iter().flat_map(|number| (*number as u64).to_le_bytes()));
    bytes.extend((scores.len() as u64).to_le_bytes());
    bytes.extend(scores.iter().flat_map(|score| score.to_le_bytes()));
    bytes
}

/// Reads bytes of [`write`]; `None` for other bytes.
pub(crate) fn read(bytes: &[u8]) -> Option<(Vec<usize>, Vec<f32>)> {
    let (numbers, bytes) = list::<8>(bytes)?;
    let (scores, rest) = list::<4>(bytes)?;
    let numbers = numbers
        .iter()
        .map(|number| usize::try_from(u64::from_le_bytes(*number)).ok())
        .collect::<Option<_>>()?;
    let scores = scores.iter().map(|score| f32::from_le_bytes(*score)).collect();
    rest.is_empty().then_some((numbers, scores))
}

/// A list preceded by its length, and the bytes after it.
fn list<const WIDTH: usize>(bytes: &[u8]) -> Option<(&[[u8; WIDTH]], &[u8])> {
    let (count, bytes) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*count)).ok()?.checked_mul(WIDTH)?;
    let (list, rest) = bytes.split_at_checked(length)?;
    Some((list.as_chunks().0, rest))
}
