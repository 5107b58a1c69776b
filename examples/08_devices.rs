//! Devices: one program on the host, on a simulated device, and on a GPU where there is one.
//!
//! What you learn: the device is a value, and operands on different devices are an error; a simulated device runs late,
//! in any order that its streams allow, and reports what a program forgot to order; a captured section runs again in
//! one call; and a GPU that is missing is an error that says what was looked for.
//!
//! ```text
//! $ cargo run --release --example 08_devices
//! cpu: 33
//! sim: 2 kernels wait
//! sim: the sum is 2000, 0 wait
//! sim: 33, 0 violations
//! without order between streams: 1 violation
//! replayed ten times: [11.0, 11.0, 11.0]
//! device mismatch in add, lhs: sim:0, rhs: cpu; move one with to_device (called at examples/08_devices.rs:57:25)
//! cuda: …
//! best: 33
//! ```

use ndgc::{DType, Device, Result, Sim, SimConfig, Tensor};

/// The same program for each device.
fn program(device: &Device) -> Result<f32> {
    let x = Tensor::ones((64, 64), DType::F32, device)?;
    x.matmul(&x)?.affine(0.5, 1.)?.mean_all()?.to_scalar()
}

fn main() -> Result<()> {
    println!("cpu: {}", program(&Device::Cpu)?);

    // A device of tests: nothing is done when a call returns, and every access is checked.
    let sim = Sim::new(SimConfig { streams: 2, seed: 7, ..SimConfig::default() });
    let device = Device::Sim(sim.clone());
    let x = Tensor::ones(1000, DType::F32, &device)?;
    let y = (&x + 1.)?;
    println!("sim: {} kernels wait", sim.pending());
    println!("sim: the sum is {}, {} wait", y.sum_all()?.to_scalar::<f32>()?, sim.pending());
    println!("sim: {}, {} violations", program(&device)?, sim.violations().len());

    // What a missing order between streams would break, the checker sees without luck.
    let careless = Sim::new(SimConfig { order_streams: false, ..SimConfig::default() });
    let device_without_order = Device::Sim(careless.clone());
    let a = careless.on_stream(0, || Tensor::ones(4, DType::F32, &device_without_order))?;
    let b = careless.on_stream(1, || &a + 1.)?;
    println!("without order between streams: {} violation", careless.violations().len());
    drop((a, b));

    // A section, once as usual so that the device has its memory, once recorded, then replayed in one call each.
    let counter = Tensor::zeros(3, DType::F32, &device)?;
    let section = || counter.add_(&Tensor::ones(3, DType::F32, &device)?).map(drop);
    section()?;
    let (graph, ()) = device.capture(section)?;
    (0..10).try_for_each(|_| graph.replay())?;
    println!("replayed ten times: {:?}", counter.to_vec1::<f32>()?);

    // Never moved silently.
    if let Err(error) = &counter + &Tensor::zeros(3, DType::F32, &Device::Cpu)? {
        println!("{error}");
    }

    // `Device::best()` is this with the host as the way out.
    match Device::new_cuda(0) {
        Ok(gpu) => println!("cuda: {}", program(&gpu)?),
        Err(error) => println!("cuda: {error}"),
    }
    println!("best: {}", program(&Device::best())?);
    Ok(())
}
