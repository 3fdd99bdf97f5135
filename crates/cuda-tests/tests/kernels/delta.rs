//! Gated DeltaNet, compared with the recurrence in f64.

use riffle_cuda::ops::{
    DeltaGates, DeltaShape, DeltaTokens, Rows, convolve, delta_gates, delta_rule, delta_scratch_bytes,
};

use crate::testing::{assert_near, noise, on_every_device};

#[test]
fn convolutions_go_on_where_the_rows_before_ended() {
    on_every_device(|gpu, stream| {
        let (kernel, channels, rows) = (4, 37, 23);
        let (taps, input) = (noise(kernel * channels, 1), noise(rows * channels, 2));
        let expected: Vec<f64> = (0..rows * channels)
            .map(|at| {
                let (row, channel) = (at / channels, at % channels);
                let taps = (0..kernel).filter(|tap| row + tap + 1 >= kernel).map(|tap| {
                    f64::from(taps[tap * channels + channel])
                        * f64::from(input[(row + tap + 1 - kernel) * channels + channel])
                });
                let sum: f64 = taps.sum();
                sum / (1.0 + (-sum).exp())
            })
            .collect();
        let taps = gpu.upload(&taps).unwrap();
        for piece in [rows, 1, 2, 5] {
            let before = gpu.upload(&vec![0.0f32; 3 * channels]).unwrap();
            let mut found = Vec::new();
            for part in input.chunks(piece * channels) {
                let (from, to) = (gpu.upload(part).unwrap(), gpu.allocate(4 * part.len()).unwrap());
                let input = Rows {
                    data: from.all(),
                    rows: part.len() / channels,
                    width: channels,
                };
                convolve(stream, to.all(), &input, before.all(), taps.all(), kernel).unwrap();
                found.extend(gpu.download::<f32>(to.all(), stream).unwrap());
            }
            assert_near(&found, &expected, 1e-6, "convolution");
            assert_eq!(
                gpu.download::<f32>(before.all(), stream).unwrap(),
                input[(rows - 3) * channels..]
            );
        }
    });
}

#[test]
fn gates_follow_their_formulas() {
    on_every_device(|gpu, stream| {
        let (rows, heads) = (9, 5);
        let (b, a) = (
            noise(rows * heads, 1),
            noise(rows * heads, 2).iter().map(|x| 30.0 * x).collect::<Vec<_>>(),
        );
        let (rates, biases) = (noise(heads, 3), noise(heads, 4));
        let [db, da, dr, ds] = [&b, &a, &rates, &biases].map(|v| gpu.upload(v).unwrap());
        let gates = DeltaGates {
            strength: db.all(),
            decay: da.all(),
            rows,
            heads,
        };
        delta_gates(stream, &gates, dr.all(), ds.all()).unwrap();
        let strength: Vec<f64> = b.iter().map(|x| 1.0 / (1.0 + (-f64::from(*x)).exp())).collect();
        let decay: Vec<f64> = (0..rows * heads)
            .map(|at| f64::from(rates[at % heads]) * (f64::from(a[at]) + f64::from(biases[at % heads])).exp().ln_1p())
            .collect();
        assert_near(&gpu.download(db.all(), stream).unwrap(), &strength, 1e-6, "strength");
        assert_near(&gpu.download(da.all(), stream).unwrap(), &decay, 1e-6, "decay");
    });
}

struct Case {
    shape: DeltaShape,
    rows: usize,
    mixed: Vec<f32>,
    strength: Vec<f32>,
    decay: Vec<f32>,
}

impl Case {
    fn new(
        key_heads: usize,
        value_heads: usize,
        key_dim: usize,
        value_dim: usize,
        rows: usize,
        strongest: f32,
    ) -> Self {
        let heads_tiled = value_heads == 3;
        let shape = DeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            heads_tiled,
        };
        Self {
            shape,
            rows,
            mixed: noise(rows * shape.channels(), 1),
            strength: noise(rows * value_heads, 2).iter().map(|x| 0.5 + 0.5 * x).collect(),
            decay: noise(rows * value_heads, 3)
                .iter()
                .map(|x| -strongest * (0.5 + 0.5 * x))
                .collect(),
        }
    }

    /// Outputs `[rows, value_heads, value_dim]` and memories `[value_heads, key_dim, value_dim]`.
    fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        let DeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            heads_tiled,
        } = self.shape;
        let mut reads = vec![0.0; self.rows * value_heads * value_dim];
        let mut memories = Vec::new();
        for head in 0..value_heads {
            let key_head = if heads_tiled {
                head % key_heads
            } else {
                head / (value_heads / key_heads)
            };
            let mut memory = vec![0.0f64; key_dim * value_dim];
            for (index, row) in self.mixed.chunks_exact(self.shape.channels()).enumerate() {
                let part = |from: usize, width: usize| row[from..from + width].iter().map(|x| f64::from(*x));
                let unit = |from: usize| -> Vec<f64> {
                    let length = (part(from, key_dim).map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    part(from, key_dim).map(|x| x / length).collect()
                };
                let (query, key) = (unit(key_head * key_dim), unit((key_heads + key_head) * key_dim));
                let values: Vec<f64> = part(2 * key_heads * key_dim + head * value_dim, value_dim).collect();
                let remains = f64::from(self.decay[index * value_heads + head]).exp();
                memory.iter_mut().for_each(|x| *x *= remains);
                for column in 0..value_dim {
                    let held: f64 = (0..key_dim).map(|i| key[i] * memory[i * value_dim + column]).sum();
                    let write = f64::from(self.strength[index * value_heads + head]) * (values[column] - held);
                    (0..key_dim).for_each(|i| memory[i * value_dim + column] += key[i] * write);
                    let read: f64 = (0..key_dim).map(|i| query[i] * memory[i * value_dim + column]).sum();
                    reads[(index * value_heads + head) * value_dim + column] = read / (key_dim as f64).sqrt();
                }
            }
            memories.extend(memory);
        }
        (reads, memories)
    }
}

#[test]
fn chunks_and_single_tokens_equal_the_recurrence() {
    on_every_device(|gpu, stream| {
        let cases = [
            Case::new(1, 1, 12, 5, 30, 0.5),
            Case::new(2, 4, 16, 33, 150, 0.1),
            Case::new(1, 3, 12, 40, 129, 60.0),
            Case::new(1, 2, 128, 32, 70, 0.01),
        ];
        for case in cases {
            let (reads, memories) = case.reference();
            let [mixed, strength, decay] =
                [&case.mixed, &case.strength, &case.decay].map(|values| gpu.upload(values).unwrap());
            let (channels, heads) = (case.shape.channels(), case.shape.value_heads);
            let width = heads * case.shape.value_dim;
            let mut bits_of_few = None;
            for (piece, one_by_one) in [case.rows, 64, 17, 7]
                .map(|piece| (piece, false))
                .into_iter()
                .chain([(case.rows, true)])
            {
                let memory = gpu.upload(&vec![0.0f32; case.shape.memory_values()]).unwrap();
                let read = gpu.allocate(4 * case.rows * width).unwrap();
                let scratch = gpu.allocate(delta_scratch_bytes(&case.shape, piece)).unwrap();
                for first in (0..case.rows).step_by(piece) {
                    let rows = piece.min(case.rows - first);
                    let tokens = DeltaTokens {
                        one_by_one,
                        rows,
                        mixed: mixed.region(4 * first * channels..4 * (first + rows) * channels),
                        strength: strength.region(4 * first * heads..4 * (first + rows) * heads),
                        decay: decay.region(4 * first * heads..4 * (first + rows) * heads),
                    };
                    let part = read.region(4 * first * width..4 * (first + rows) * width);
                    delta_rule(stream, &case.shape, part, memory.all(), &tokens, scratch.all()).unwrap();
                }
                let what = format!("{:?} in {piece}", case.shape);
                let found = [&read, &memory].map(|buffer| gpu.download::<f32>(buffer.all(), stream).unwrap());
                assert_near(&found[0], &reads, 5e-6, &what);
                assert_near(&found[1], &memories, 5e-6, &what);
                match (piece, one_by_one) {
                    (7, _) => bits_of_few = Some(found),
                    (_, true) => assert!(bits_of_few.as_ref() == Some(&found), "{what}, one by one"),
                    _ => {}
                }
            }
        }
    });
}
