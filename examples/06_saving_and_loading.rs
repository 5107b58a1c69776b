//! Saving and loading: weights by name, arrays for NumPy, and a damaged file.
//!
//! What you learn: a `VarMap` writes its variables as safetensors and reads them back in place; npy and npz go to and
//! from NumPy; what is loaded belongs to the manager or the device it is asked of; and a file that is not whole is an
//! error that names the byte, before memory is taken for what it does not hold.
//!
//! ```text
//! $ cargo run --release --example 06_saving_and_loading
//! the loaded layer gives the same: true
//! bias f32 [2]
//! weight f32 [2, 3]
//! the manager has 2 arrays
//! x f32 [[1.0, 2.0, 3.0]]
//! half f16 [[1.0, 2.0, 3.0]]
//! …/half.npy: at byte 128: the data takes 12 bytes, and 7 are left (called at examples/06_saving_and_loading.rs:68:25)
//! ```

use std::collections::BTreeMap;
use std::fs;

use ndgc::nn::{self, Module, VarBuilder, VarMap};
use ndgc::{DType, Device, NdManager, Result, Tensor, npz, safetensors};

fn layer(variables: &VarMap) -> Result<nn::Linear> {
    nn::linear(3, 2, VarBuilder::from_varmap(variables, DType::F32, &Device::Cpu))
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("ndgc-saving-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let done = save_and_load(&folder);
    fs::remove_dir_all(&folder)?;
    done
}

fn save_and_load(folder: &std::path::Path) -> Result<()> {
    // A layer of 3 to 2, drawn; another one, drawn anew, takes its weights.
    let x = Tensor::new([[1f32, 2., 3.]], &Device::Cpu)?;
    let (first, mut second) = (VarMap::new(), VarMap::new());
    let (trained, fresh) = (layer(&first)?, layer(&second)?);
    let file = folder.join("layer.safetensors");
    first.save(&file)?;
    second.load(&file)?; // into the variables that are there
    let same = trained.forward(&x)?.to_vec2::<f32>()? == fresh.forward(&x)?.to_vec2::<f32>()?;
    println!("the loaded layer gives the same: {same}");

    // By name, without a layer: a manager owns what it loads.
    let manager = NdManager::new_base_manager(&Device::Cpu)?;
    let arrays: BTreeMap<_, _> = safetensors::load(&file, &manager)?.into_iter().collect();
    for (name, array) in &arrays {
        println!("{name} {} {:?}", array.dtype(), array.dims());
    }
    println!("the manager has {} arrays", manager.array_count());
    manager.close()?;

    // For NumPy: `numpy.load("arrays.npz")["x"]`.
    let file = folder.join("arrays.npz");
    Tensor::write_npz(&[("x", &x), ("half", &x.to_dtype(DType::F16)?)], &file)?;
    for (name, array) in npz::read(&file, &Device::Cpu)? {
        println!("{name} {} {:?}", array.dtype(), array.to_dtype(DType::F32)?.to_vec2::<f32>()?);
    }

    // Half of a file.
    let file = folder.join("half.npy");
    x.write_npy(&file)?;
    let bytes = fs::read(&file)?;
    fs::write(&file, &bytes[..bytes.len() - 5])?;
    if let Err(error) = Tensor::read_npy(&file) {
        println!("{error}");
    }
    Ok(())
}
