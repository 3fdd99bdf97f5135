//! GFLOP/s of candle's product of a square matrix with some tokens: `rates SIZE FORMAT TOKENS`. Together the matrices
//! exceed the caches, as in `rates` of the linear layers.

use std::time::Instant;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{Device, Module, Tensor};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [size, format, tokens] = &words[..] else {
        panic!("usage: rates SIZE FORMAT TOKENS");
    };
    let (size, tokens): (usize, usize) = (size.parse().unwrap(), tokens.parse().unwrap());
    let dtype = match format.as_str() {
        "f32" => GgmlDType::F32,
        "f16" => GgmlDType::F16,
        "bf16" => GgmlDType::BF16,
        "q4_0" => GgmlDType::Q4_0,
        "q8_0" => GgmlDType::Q8_0,
        "q4_k" => GgmlDType::Q4K,
        "q6_k" => GgmlDType::Q6K,
        _ => panic!("no such format: {format}"),
    };
    let values: Vec<f32> = (0..size * size)
        .map(|index| ((index * 37) % 101) as f32 / 50.0 - 1.0)
        .collect();
    let plain = Tensor::from_vec(values, (size, size), &Device::Cpu).unwrap();
    let bytes = size * size / dtype.block_size() * dtype.type_size();
    let copies = (192 << 20) / bytes + 1;
    let data = QTensor::quantize(&plain, dtype).unwrap().data().unwrap().into_owned();
    let products: Vec<QMatMul> = (0..copies)
        .map(|_| {
            let storage = QStorage::from_data(data.clone().into(), &Device::Cpu, dtype).unwrap();
            QMatMul::from_qtensor(QTensor::new(storage, (size, size)).unwrap()).unwrap()
        })
        .collect();
    let input: Vec<f32> = (0..tokens * size).map(|index| (index % 17) as f32 - 8.0).collect();
    let input = Tensor::from_vec(input, (tokens, size), &Device::Cpu).unwrap();
    let (mut best, mut runs, begin) = (f64::INFINITY, 0, Instant::now());
    while runs < 5 || begin.elapsed().as_secs_f64() < 0.5 {
        let start = Instant::now();
        std::hint::black_box(products[runs % copies].forward(&input).unwrap());
        best = best.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    println!("{:.1}", 2.0 * (tokens * size * size) as f64 / best / 1e9);
}
