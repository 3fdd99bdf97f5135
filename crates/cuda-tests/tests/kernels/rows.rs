use riffle_cuda::ops::{self, Activation, Columns, HeadRows, Rows};

use crate::testing::{assert_near, noise, on_every_device};

fn f64s(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

#[test]
fn maps_follow_their_formulas() {
    on_every_device(|gpu, stream| {
        let (a, b) = (noise(1003, 1), noise(1003, 2));
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let gelu = |x: f64| x * sigmoid(1.595_769_121_605_73 * (x + 0.044715 * x * x * x));
        let run = |name: &str, f: &dyn Fn(f64, f64) -> f64| {
            let (x, y) = (gpu.upload(&a).unwrap(), gpu.upload(&b).unwrap());
            let (x, count) = (&x, a.len());
            match name {
                "add" => ops::add(stream, x.all(), y.all(), count),
                "multiply" => ops::multiply(stream, x.all(), 0.5, count),
                "silu" => ops::activate(stream, x.all(), Activation::Silu, count),
                "gelu" => ops::activate(stream, x.all(), Activation::GeluTanh, count),
                "swiglu" => ops::gate_product(stream, x.all(), y.all(), Activation::Silu, count),
                "geglu" => ops::gate_product(stream, x.all(), y.all(), Activation::GeluTanh, count),
                "sigmoid" => ops::gate_product(stream, x.all(), y.all(), Activation::Sigmoid, count),
                "cap" => ops::soft_cap(stream, x.all(), 0.3, count),
                "bias" => ops::add_to_rows(stream, x.all(), y.all(), 17, 59),
                other => panic!("{other}"),
            }
            .unwrap();
            let expected: Vec<f64> = (0..count)
                .map(|i| f(f64::from(a[i]), f64::from(b[if name == "bias" { i % 59 } else { i }])))
                .collect();
            assert_near(&gpu.download(x.all(), stream).unwrap(), &expected, 1e-6, name);
        };
        run("add", &|a, b| a + b);
        run("multiply", &|a, _| a * 0.5);
        run("silu", &|a, _| a * sigmoid(a));
        run("gelu", &|a, _| gelu(a));
        run("swiglu", &|a, b| a * sigmoid(a) * b);
        run("geglu", &|a, b| gelu(a) * b);
        run("sigmoid", &|a, b| sigmoid(a) * b);
        run("cap", &|a, _| 0.3 * (a / 0.3).tanh());
        run("bias", &|a, b| a + b);
        let short = gpu.allocate(8).unwrap();
        let error = ops::add(stream, short.all(), short.all(), 3).unwrap_err();
        assert_eq!(error.to_string(), "sum holds 8 bytes, 12 are needed");
    });
}

#[test]
fn columns_move_between_strides() {
    on_every_device(|gpu, stream| {
        // [3 rows, 2 pieces of 5 in 14 columns] to [3, 2, 5]
        let source = noise(42, 3);
        let (from, to) = (gpu.upload(&source).unwrap(), gpu.allocate(120).unwrap());
        let target = Columns {
            data: to.all(),
            row_stride: 10,
            piece_stride: 5,
        };
        let columns = Columns {
            data: from.region(8..168),
            row_stride: 14,
            piece_stride: 6,
        };
        ops::copy_columns(stream, &target, &columns, 3, 2, 5).unwrap();
        let expected: Vec<f32> = (0..30)
            .map(|i| source[2 + i / 10 * 14 + i / 5 % 2 * 6 + i % 5])
            .collect();
        assert_eq!(gpu.download::<f32>(to.all(), stream).unwrap(), expected);
    });
}

#[test]
fn norms_follow_their_formulas() {
    on_every_device(|gpu, stream| {
        for (rows, width) in [(3, 64), (2, 1000), (5, 33)] {
            let (x, weight, bias) = (noise(rows * width, 1), noise(width, 2), noise(width, 3));
            let [dx, dw, db] = [&x, &weight, &bias].map(|v| gpu.upload(v).unwrap());
            let out = gpu.allocate(4 * x.len()).unwrap();
            let input = Rows {
                data: dx.all(),
                rows,
                width,
            };
            ops::rms_norm(stream, out.all(), &input, dw.all(), 1e-5).unwrap();
            let mut expected = Vec::new();
            for row in x.chunks(width).map(f64s) {
                let rms = (row.iter().map(|x| x * x).sum::<f64>() / width as f64 + 1e-5).sqrt();
                expected.extend(row.iter().zip(&weight).map(|(x, w)| x / rms * f64::from(*w)));
            }
            assert_near(&gpu.download(out.all(), stream).unwrap(), &expected, 1e-6, "rms norm");
            ops::layer_norm(stream, out.all(), &input, dw.all(), db.all(), 1e-5).unwrap();
            let mut expected = Vec::new();
            for row in x.chunks(width).map(f64s) {
                let mean = row.iter().sum::<f64>() / width as f64;
                let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width as f64;
                let affine = weight.iter().zip(&bias);
                expected.extend(
                    row.iter()
                        .zip(affine)
                        .map(|(x, (w, b))| (x - mean) / (variance + 1e-5).sqrt() * f64::from(*w) + f64::from(*b)),
                );
            }
            assert_near(&gpu.download(out.all(), stream).unwrap(), &expected, 1e-6, "layer norm");
        }
    });
}

#[test]
fn heads_are_normalised_gated_and_turned_where_they_lie() {
    on_every_device(|gpu, stream| {
        let (rows, heads, head_dim, stride, turned) = (3, 5, 48, 250, 12);
        let (x, gate) = (noise(rows * stride, 1), noise(rows * stride, 4));
        let (weight, turns) = (noise(head_dim, 2), noise(rows * turned, 3));
        let [dx, dg, dw, dt] = [&x, &gate, &weight, &turns].map(|v| gpu.upload(v).unwrap());
        let view = |data| HeadRows {
            data,
            rows,
            heads,
            head_dim,
            stride,
        };
        ops::head_norm(stream, &view(dx.all()), dw.all(), Some(&view(dg.all())), 1e-6).unwrap();
        let mut expected = f64s(&x);
        for row in 0..rows {
            for head in 0..heads {
                let from = row * stride + head * head_dim;
                let head = &mut expected[from..from + head_dim];
                let rms = (head.iter().map(|x| x * x).sum::<f64>() / head_dim as f64 + 1e-6).sqrt();
                for (i, x) in head.iter_mut().enumerate() {
                    let z = f64::from(gate[from + i]);
                    *x = *x / rms * f64::from(weight[i]) * z / (1.0 + (-z).exp());
                }
            }
        }
        assert_near(&gpu.download(dx.all(), stream).unwrap(), &expected, 1e-6, "head norm");
        ops::rotary(stream, &view(dx.all()), dt.all(), turned).unwrap();
        for (row, turns) in turns.chunks(turned).enumerate() {
            for head in 0..heads {
                let head = &mut expected[row * stride + head * head_dim..][..head_dim];
                for pair in 0..turned / 2 {
                    let (cosine, sine) = (f64::from(turns[2 * pair]), f64::from(turns[2 * pair + 1]));
                    let (a, b) = (head[pair], head[pair + turned / 2]);
                    (head[pair], head[pair + turned / 2]) = (a * cosine - b * sine, b * cosine + a * sine);
                }
            }
        }
        assert_near(&gpu.download(dx.all(), stream).unwrap(), &expected, 1e-6, "rotary");
        assert!(ops::rotary(stream, &view(dx.all()), dt.all(), 50).is_err());
    });
}

#[test]
fn the_largest_logit_is_the_lowest_of_equals() {
    on_every_device(|gpu, stream| {
        let width = 1037;
        let mut logits = noise(3 * width, 5);
        (logits[700], logits[35], logits[900]) = (2.0, 2.0, 2.0);
        logits[width..2 * width].fill(f32::NEG_INFINITY);
        logits[3 * width - 1] = 7.0;
        let (from, index) = (gpu.upload(&logits).unwrap(), gpu.allocate(12).unwrap());
        let input = Rows {
            data: from.all(),
            rows: 3,
            width,
        };
        ops::argmax(stream, index.all(), &input).unwrap();
        assert_eq!(gpu.download::<u32>(index.all(), stream).unwrap(), [35, 0, 1036]);
    });
}
