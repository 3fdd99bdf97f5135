use riffle_cuda::ops::DeviceMatrix;
use riffle_linear::{PackedMatrix, WeightFormat};

use crate::testing::{assert_near, noise, on_every_device};

/// Blocks with random bits and moderate scales.
fn weights(format: WeightFormat, outputs: usize, inputs: usize) -> Vec<u8> {
    let half = |x: f32| riffle_attention::f32_to_f16(x).to_le_bytes();
    let count = outputs * inputs / format.block_weights();
    let numbers = noise(outputs * inputs, 9);
    match format {
        WeightFormat::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        WeightFormat::F16 => numbers.iter().flat_map(|x| half(*x)).collect(),
        WeightFormat::Bf16 => numbers
            .iter()
            .flat_map(|x| riffle_attention::f32_to_bf16(*x).to_le_bytes())
            .collect(),
        _ => {
            let scale_at: &[usize] = match format {
                WeightFormat::Q2K => &[80, 82],
                WeightFormat::Q3K => &[108],
                WeightFormat::Q6K => &[208],
                WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4K | WeightFormat::Q5K => &[0, 2],
                _ => &[0],
            };
            let bits = noise(count * format.block_bytes(), 11);
            let mut bytes: Vec<u8> = bits.iter().map(|x| (x.to_bits() >> 3) as u8).collect();
            for (index, block) in bytes.chunks_exact_mut(format.block_bytes()).enumerate() {
                for at in scale_at {
                    block[*at..at + 2].copy_from_slice(&half(0.02 * numbers[index % numbers.len()] + 0.03));
                }
            }
            bytes
        }
    }
}

#[test]
fn products_equal_those_of_the_cpu_in_every_format() {
    on_every_device(|gpu, stream| {
        for format in WeightFormat::ALL
            .iter()
            .filter(|format| DeviceMatrix::supports(**format))
        {
            let inputs = if format.block_weights() == 256 { 512 } else { 160 };
            let outputs = 70;
            let bytes = weights(*format, outputs, inputs);
            let cpu = PackedMatrix::pack(*format, outputs, inputs, &bytes).unwrap();
            let matrix = DeviceMatrix::upload(gpu, *format, outputs, inputs, &bytes).unwrap();
            for rows in [1, 3, 9, 133] {
                let input = noise(rows * inputs, rows);
                let mut expected = vec![0.0; rows * outputs];
                cpu.matmul(&input, &mut expected);
                let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
                let (x, y) = (gpu.upload(&input).unwrap(), gpu.allocate(4 * rows * outputs).unwrap());
                let scratch = gpu.allocate(matrix.scratch_bytes(rows)).unwrap();
                matrix.multiply(stream, y.all(), x.all(), rows, scratch.all()).unwrap();
                // With many rows, activations are rounded to the type of float weights.
                let tolerance = match (rows > 8, format) {
                    (true, WeightFormat::F16) => 1e-3,
                    (true, WeightFormat::Bf16) => 8e-3,
                    _ => 2e-6,
                };
                let found = gpu.download(y.all(), stream).unwrap();
                assert_near(&found, &expected, tolerance, &format!("{format}, {rows} rows"));
            }
        }
    });
}

#[test]
fn rows_whose_length_is_no_multiple_of_eight_are_multiplied_too() {
    on_every_device(|gpu, stream| {
        for (format, tolerance) in [(WeightFormat::F16, 1e-3), (WeightFormat::F32, 1e-6)] {
            let (rows, outputs, inputs) = (10, 5, 43);
            let bytes = weights(format, outputs, inputs);
            let cpu = PackedMatrix::pack(format, outputs, inputs, &bytes).unwrap();
            let matrix = DeviceMatrix::upload(gpu, format, outputs, inputs, &bytes).unwrap();
            let input = noise(rows * inputs, 1);
            let mut expected = vec![0.0; rows * outputs];
            cpu.matmul(&input, &mut expected);
            let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
            let (x, y) = (gpu.upload(&input).unwrap(), gpu.allocate(4 * rows * outputs).unwrap());
            let scratch = gpu.allocate(matrix.scratch_bytes(rows)).unwrap();
            matrix.multiply(stream, y.all(), x.all(), rows, scratch.all()).unwrap();
            assert_near(
                &gpu.download(y.all(), stream).unwrap(),
                &expected,
                tolerance,
                "odd inputs",
            );
        }
    });
}

#[test]
fn gathered_rows_are_those_of_the_file_to_the_bit() {
    on_every_device(|gpu, stream| {
        for format in WeightFormat::ALL
            .iter()
            .filter(|format| DeviceMatrix::supports(**format))
        {
            let (outputs, inputs) = (7, 256);
            let bytes = weights(*format, outputs, inputs);
            let cpu = PackedMatrix::pack(*format, outputs, inputs, &bytes).unwrap();
            let matrix = DeviceMatrix::upload(gpu, *format, outputs, inputs, &bytes).unwrap();
            let ids = [6u32, 0, 3];
            let (at, y) = (gpu.upload(&ids).unwrap(), gpu.allocate(4 * 3 * inputs).unwrap());
            matrix.gather(stream, y.all(), at.all(), 3).unwrap();
            let mut expected = vec![0.0; 3 * inputs];
            for (id, row) in ids.iter().zip(expected.chunks_exact_mut(inputs)) {
                cpu.row_into(*id as usize, row);
            }
            assert_eq!(gpu.download::<f32>(y.all(), stream).unwrap(), expected, "{format}");
        }
    });
}

#[test]
fn an_activation_that_is_not_finite_makes_its_row_not_a_number() {
    on_every_device(|gpu, stream| {
        let bytes = weights(WeightFormat::Q8_0, 3, 64);
        let matrix = DeviceMatrix::upload(gpu, WeightFormat::Q8_0, 3, 64, &bytes).unwrap();
        let mut input = noise(128, 1);
        input[70] = f32::INFINITY;
        let (x, y) = (gpu.upload(&input).unwrap(), gpu.allocate(24).unwrap());
        let scratch = gpu.allocate(matrix.scratch_bytes(2)).unwrap();
        matrix.multiply(stream, y.all(), x.all(), 2, scratch.all()).unwrap();
        let found: Vec<f32> = gpu.download(y.all(), stream).unwrap();
        assert!(found[..3].iter().all(|x| x.is_finite()) && found[3..].iter().all(|x| x.is_nan()));
        let error = DeviceMatrix::upload(gpu, WeightFormat::Q8_0, 3, 60, &bytes).unwrap_err();
        assert!(error.to_string().contains("whole blocks"), "{error}");
    });
}
