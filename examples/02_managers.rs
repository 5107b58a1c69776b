//! Managers: who owns an array, and when it ends.
//!
//! What you learn: a manager owns the arrays that it makes, and results belong to the manager of their first operand.
//! Closing a manager ends its arrays and all managers below it, whatever handles are left; what shall stay is moved up
//! before. A handle of a closed array is an error that says who closed it, and where.
//!
//! ```text
//! $ cargo run --release --example 02_managers
//! y belongs to batch
//! model: 1 array, batch: 3 arrays
//! closed: x true, y true, best false
//! best is 6 and belongs to model
//! exp: array … (made at …) has been closed already, with its manager at examples/02_managers.rs:38:11; …
//! lent: visit has 1 array
//! back: weights open true
//! made on a device: owned by its handles true
//! attached: owned by its handles false, model 3 arrays
//! ```

use ndgc::{DType, Device, NdManager, Result, Tensor};

fn main() -> Result<()> {
    let model = NdManager::new_base_manager(&Device::Cpu)?;
    model.set_name("model");
    let weights = model.ones((3, 2), DType::F32)?;

    // A scope for the arrays of one batch.
    let batch = model.new_sub_manager()?;
    batch.set_name("batch");
    let x = batch.from_vec(vec![1f32, 2., 3.], (1, 3))?;
    let y = x.matmul(&weights)?; // of `batch`, as `x` is
    let best = y.max_all()?;
    println!("y belongs to {}", y.manager()?.name());
    println!("model: {} array, batch: {} arrays", model.array_count(), batch.array_count());

    // What shall stay moves up; the rest ends with its manager, though `x` and `y` are still in scope.
    model.ret_to(&best)?;
    batch.close()?;
    println!("closed: x {}, y {}, best {}", x.is_released(), y.is_released(), best.is_released());
    println!("best is {} and belongs to {}", best.to_scalar::<f32>()?, best.manager()?.name());
    if let Err(error) = y.exp() {
        println!("{error}");
    }

    // Lent: the array goes back to its owner when the borrower closes.
    let visit = model.new_sub_manager()?;
    weights.temp_attach(&visit)?;
    println!("lent: visit has {} array", visit.array_count());
    visit.close()?;
    println!("back: weights open {}", weights.is_open());

    // Made on a device instead of a manager, an array is owned by its handles, and ends with the last of them.
    let free = Tensor::ones(4, DType::F32, &Device::Cpu)?;
    println!("made on a device: owned by its handles {}", free.is_detached()?);
    free.attach(&model)?; // now by the model, as the others are
    println!("attached: owned by its handles {}, model {} arrays", free.is_detached()?, model.array_count());
    Ok(())
}
