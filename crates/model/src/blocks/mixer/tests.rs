//! Mixers against `transformers` (vectors of `scripts/make_state_vectors.py`), and the laws of all mixers.

use std::ops::Range;
use std::path::Path;

use super::*;
use crate::blocks::{Activation, Mamba2Norm, Mamba2Settings};
use crate::weights::open_directory;
use crate::{AdapterScales, KimiDeltaShape, LightningShape, Mamba2Shape, ShortConvolutionShape};

const ROWS: usize = 100;
const HIDDEN: usize = 16;

struct Case {
    name: &'static str,
    mixer: Mixer,
    // [ROWS, HIDDEN]
    input: Vec<f32>,
    // [ROWS, HIDDEN]
    output: Vec<f32>,
}

fn convolution(kernel: usize) -> StateShape {
    StateShape::ShortConvolution(ShortConvolutionShape {
        channels: HIDDEN,
        kernel,
    })
}

fn mamba2([heads, head_dim, state_width, groups, kernel]: [usize; 5]) -> StateShape {
    StateShape::Mamba2(Mamba2Shape {
        heads,
        head_dim,
        state_width,
        groups,
        kernel,
    })
}

fn kimi_delta(heads: usize, head_dim: usize, kernel: usize) -> StateShape {
    StateShape::KimiDelta(KimiDeltaShape {
        heads,
        head_dim,
        kernel,
    })
}

fn norm(groups: usize, before_gate: bool, epsilon: f32) -> Option<Mamba2Norm> {
    Some(Mamba2Norm {
        groups,
        epsilon,
        before_gate,
    })
}

impl Case {
    /// `biased` is for short convolutions, `settings` for Mamba2.
    fn read(name: &'static str, shape: StateShape, biased: bool, settings: Mamba2Settings) -> Case {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/vectors/states")
            .join(name);
        let mut weights = open_directory(&folder).unwrap();
        let mixer = match shape {
            StateShape::ShortConvolution(shape) => {
                let mixer = ShortConvolution::load(&mut weights, "mixer", &shape, HIDDEN, biased);
                Mixer::ShortConvolution(Box::new(mixer.unwrap()))
            }
            StateShape::Mamba2(shape) => {
                let mixer = Mamba2::load(&mut weights, "mixer", &shape, HIDDEN, settings);
                Mixer::Mamba2(Box::new(mixer.unwrap()))
            }
            StateShape::KimiDelta(shape) => {
                let mixer = KimiDeltaAttention::load(&mut weights, "mixer", &shape, HIDDEN, 1e-5);
                Mixer::KimiDelta(Box::new(mixer.unwrap()))
            }
            StateShape::Lightning(shape) => {
                let (place, activation) = ((1, 3), Activation::Silu);
                let mixer = LightningAttention::load(&mut weights, "mixer", &shape, HIDDEN, place, activation);
                Mixer::Lightning(Box::new(mixer.unwrap()))
            }
            StateShape::GatedDeltaNet(_) | StateShape::Ngrams(_) => unreachable!("whole models test it"),
        };
        let [input, output] = ["input", "output"].map(|name| weights.array(name, &[ROWS, HIDDEN]).unwrap());
        assert!(weights.untaken().is_empty(), "{name}: {:?}", weights.untaken());
        Case {
            name,
            mixer,
            input,
            output,
        }
    }

    fn all() -> [Case; 10] {
        let plain = Mamba2Settings::default();
        let of = |name, sizes, settings| Case::read(name, mamba2(sizes), false, settings);
        let biased = Mamba2Settings {
            input_bias: true,
            output_bias: true,
            time_step_limits: [0.5, 0.9],
            norm: norm(2, false, 1e-5),
            ..plain
        };
        let with_least_step = Mamba2Settings {
            convolution_bias: false,
            time_step_limits: [0.4, f32::INFINITY],
            norm: norm(3, false, 1e-5),
            ..plain
        };
        let normed = |norm| Mamba2Settings { norm, ..plain };
        let without_norm = Mamba2Settings {
            input_bias: true,
            norm: None,
            ..plain
        };
        [
            Case::read("short_convolution", convolution(3), false, plain),
            Case::read("short_convolution_biased", convolution(4), true, plain),
            of("mamba2", [6, 8, 12, 2, 4], biased),
            of("nemotron_h", [3, 12, 20, 3, 3], with_least_step),
            of("granite", [4, 8, 16, 1, 4], normed(norm(1, false, 1e-6))),
            of("falcon_h1", [4, 8, 8, 2, 4], normed(norm(2, true, 1e-5))),
            of("falcon_h1_wide", [2, 72, 8, 2, 4], without_norm),
            Case::read("kimi_delta", kimi_delta(3, 8, 4), false, plain),
            Case::read("kimi_delta_wide", kimi_delta(1, 72, 3), false, plain),
            Case::read(
                "lightning",
                StateShape::Lightning(LightningShape { heads: 4, head_dim: 12 }),
                false,
                plain,
            ),
        ]
    }

    fn state(&self) -> LayerState {
        LayerState::new(self.mixer.state())
    }

    /// Reads rows into a state.
    fn read_rows(&self, state: &mut LayerState, rows: Range<usize>, one_by_one: bool) -> Vec<f32> {
        let part = SegmentPart {
            segment: 0,
            rows: rows.clone(),
            position: state.tokens,
            one_by_one,
            adapters: AdapterScales::default(),
        };
        self.apply(&[part], &mut [Some(state)], rows)
    }

    fn apply(&self, parts: &[SegmentPart], states: &mut [Option<&mut LayerState>], rows: Range<usize>) -> Vec<f32> {
        let mut scratch = vec![f32::NAN; rows.len() * self.mixer.state().scratch_width()];
        let mut output = vec![f32::NAN; rows.len() * HIDDEN];
        let input = &self.input[rows.start * HIDDEN..rows.end * HIDDEN];
        self.mixer.apply(parts, states, input, &mut scratch, &mut output);
        output
    }

    /// Reads all rows into a new state, in pieces.
    fn read_in_pieces(&self, piece: usize, one_by_one: bool) -> (Vec<f32>, LayerState) {
        let (mut state, mut output) = (self.state(), Vec::new());
        for first in (0..ROWS).step_by(piece) {
            let rows = first..(first + piece).min(ROWS);
            output.extend(self.read_rows(&mut state, rows, one_by_one));
        }
        (output, state)
    }

    #[track_caller]
    fn assert_near(&self, output: &[f32]) {
        let largest = |values: &mut dyn Iterator<Item = f32>| values.map(f32::abs).fold(0.0, f32::max);
        let difference = largest(&mut output.iter().zip(&self.output).map(|(a, b)| a - b));
        let scale = largest(&mut self.output.iter().copied());
        assert!(difference < 4e-6 * scale, "{}: {difference:e} of {scale}", self.name);
    }
}

#[test]
fn outputs_are_those_of_transformers_in_chunks_and_one_by_one() {
    for case in Case::all() {
        case.assert_near(&case.read_in_pieces(ROWS, false).0);
        case.assert_near(&case.read_in_pieces(17, false).0);
        case.assert_near(&case.read_in_pieces(ROWS, true).0);
    }
}

#[test]
fn pieces_on_the_grid_and_any_number_of_threads_give_the_same_bits() {
    for case in Case::all() {
        let whole = case.read_in_pieces(ROWS, false);
        assert!(case.read_in_pieces(64, false) == whole, "{}", case.name);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert!(
            pool.install(|| case.read_in_pieces(ROWS, false)) == whole,
            "{}",
            case.name
        );
    }
}

#[test]
fn tokens_one_by_one_have_the_bits_of_tokens_that_come_alone() {
    for case in Case::all() {
        let together = case.read_in_pieces(ROWS, true);
        assert!(together == case.read_in_pieces(1, false), "{}", case.name);
        assert!(together == case.read_in_pieces(7, true), "{}", case.name);
    }
}

#[test]
fn segments_side_by_side_have_the_bits_of_each_alone() {
    for case in Case::all() {
        let cut = 30;
        let part = |segment, rows| SegmentPart {
            segment,
            rows,
            position: 0,
            one_by_one: false,
            adapters: AdapterScales::default(),
        };
        let [mut first, mut second] = [0; 2].map(|_| case.state());
        let parts = [part(0, 0..cut), part(1, cut..ROWS)];
        let joined = case.apply(&parts, &mut [Some(&mut first), Some(&mut second)], 0..ROWS);
        let [mut alone, mut other] = [0; 2].map(|_| case.state());
        let mut expected = case.read_rows(&mut alone, 0..cut, false);
        expected.extend(case.read_rows(&mut other, cut..ROWS, false));
        assert!(joined == expected && first == alone && second == other, "{}", case.name);
    }
}

#[test]
fn recorded_rows_take_a_state_back_to_any_of_them() {
    const START: usize = 60;
    for case in Case::all() {
        let mut state = case.state();
        case.read_rows(&mut state, 0..START, false);
        let start = state.clone();
        for kept in [0, 1, 5, 9] {
            let mut expected = start.clone();
            if kept > 0 {
                case.read_rows(&mut expected, START..START + kept, true);
            }
            let mut back = start.clone();
            back.recorded.begin();
            case.read_rows(&mut back, START..START + 4, true);
            case.read_rows(&mut back, START + 4..START + 9, true);
            back.copy_from(&start);
            case.mixer.replay(&mut back, kept);
            assert!(back == expected, "{}: {kept} kept", case.name);
            assert_eq!(back.recorded.rows(), Some(kept));
        }
    }
}
