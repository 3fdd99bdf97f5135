//! Differences between numbers.

use std::borrow::Borrow;

/// The largest absolute difference between two sequences of equal length; infinite if a difference is NaN.
///
/// # Panics
/// The sequences differ in length.
pub fn largest_difference<A: Borrow<f32>, B: Borrow<f32>>(
    left: impl IntoIterator<Item = A>,
    right: impl IntoIterator<Item = B>,
) -> f32 {
    let (mut left, mut right) = (left.into_iter(), right.into_iter());
    let mut largest = 0.0;
    loop {
        match (left.next(), right.next()) {
            (Some(left), Some(right)) => {
                let difference = (left.borrow() - right.borrow()).abs();
                largest = if difference.is_nan() {
                    f32::INFINITY
                } else {
                    difference.max(largest)
                };
            }
            (None, None) => return largest,
            _ => panic!("the sequences differ in length"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_number_differs_from_everything() {
        assert_eq!(largest_difference([1.0, f32::NAN, 3.0], [1.0, 2.0, 3.0]), f32::INFINITY);
        assert_eq!(largest_difference([1.0, 2.0], [1.5, 2.25]), 0.5);
        assert_eq!(largest_difference([0.0f32; 0], [0.0f32; 0]), 0.0);
    }

    #[test]
    #[should_panic(expected = "differ in length")]
    fn sequences_of_two_lengths_are_not_compared() {
        largest_difference([1.0], [1.0, 2.0]);
    }
}
