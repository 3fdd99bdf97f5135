use riffle_cuda::{CudaError, EmulatedOptions, Gpu, KernelCache};

use crate::testing::{emulated, on_every_device};

#[test]
fn copies_run_in_the_order_of_their_stream_and_what_events_ask_for() {
    on_every_device(|gpu, stream| {
        let numbers: Vec<f32> = (0..1000).map(|n| n as f32).collect();
        let device = gpu.upload(&numbers).unwrap();
        let other = gpu.allocate(4000).unwrap();
        let (start, end) = (gpu.event().unwrap(), gpu.event().unwrap());
        stream.record(&start).unwrap();
        stream
            .copy_on_device(other.region(0..400), device.region(3600..4000))
            .unwrap();
        stream.fill(device.region(3600..4000), 0).unwrap();
        stream.record(&end).unwrap();
        let second = gpu.stream().unwrap();
        second.wait(&end).unwrap();
        assert_eq!(
            gpu.download::<f32>(device.region(3596..4000), &second).unwrap()[..2],
            [899.0, 0.0]
        );
        assert_eq!(
            gpu.download::<f32>(other.region(0..400), &second).unwrap(),
            numbers[900..]
        );
        end.synchronize().unwrap();
        assert!(end.elapsed_ms_since(&start).unwrap() >= 0.0);
    });
}

#[test]
fn a_missing_wait_between_streams_shows_on_the_emulated_device() {
    let stale = (1..20).filter_map(|seed| {
        let gpu = emulated(EmulatedOptions {
            seed: Some(seed),
            ..EmulatedOptions::default()
        })?;
        let (writer, reader) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let buffer = gpu.upload(&[1.0f32]).unwrap();
        writer.fill(buffer.all(), 0).unwrap();
        Some(gpu.download::<f32>(buffer.all(), &reader).unwrap() == [1.0])
    });
    let stale: Vec<bool> = stale.collect();
    assert!(stale.is_empty() || stale.contains(&true) && stale.contains(&false));
}

#[test]
fn memory_is_refused_in_bytes_and_comes_back() {
    let options = EmulatedOptions {
        memory_bytes: 1 << 20,
        ..EmulatedOptions::default()
    };
    let Some(gpu) = emulated(options) else { return };
    let half = gpu.allocate(1 << 19).unwrap();
    assert_eq!(gpu.free_bytes(), Ok(1 << 19));
    let error = gpu.allocate((1 << 19) + 1).unwrap_err();
    assert_eq!(
        error,
        CudaError::OutOfMemory {
            place: "device",
            needed_bytes: (1 << 19) + 1,
            free_bytes: 1 << 19
        }
    );
    assert!(error.to_string().contains("524289 bytes asked for, 524288 free"));
    drop(half);
    assert_eq!(gpu.free_bytes(), Ok(1 << 20));
}

#[test]
fn a_device_that_is_too_old_is_refused_with_what_it_has_and_what_is_needed() {
    for (capability, is_refused) in [((7, 5), true), ((6, 1), true), ((8, 0), false), ((12, 0), false)] {
        let options = EmulatedOptions {
            capability,
            ..EmulatedOptions::default()
        };
        match Gpu::emulated(options, KernelCache::of_user()) {
            Err(CudaError::NoCompiler { .. }) => return,
            Err(error) => {
                assert!(is_refused, "{error}");
                assert!(matches!(&error, CudaError::Capability { found, .. } if *found == capability));
                let message = error.to_string();
                let wanted = format!(
                    "capability {}.{}; at least 8.0 is needed, use --device cpu",
                    capability.0, capability.1
                );
                assert!(message.contains(&wanted), "{message}");
            }
            Ok(_) => assert!(!is_refused),
        }
    }
}

#[test]
fn a_missing_device_is_one_clear_line() {
    // No machine has a device 999.
    let error = Gpu::open(999, KernelCache::of_user()).unwrap_err().to_string();
    assert!(error.contains("--device cpu") && !error.contains('\n'), "{error}");
}
