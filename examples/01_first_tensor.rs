//! A first tensor: made, computed with, looked at, read.
//!
//! What you learn: every operation is a method that returns a `Result`; a part of an array is a view of the same bytes;
//! and a mistake is an error that names operation and shapes, and says what would fit.
//!
//! ```text
//! $ cargo run --release --example 01_first_tensor
//! [[1., 2., 3.],
//!  [4., 5., 6.]]
//! Tensor[[2, 3], f32]
//! centred rows [[-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]
//! x times its transpose [[14.0, 32.0], [32.0, 77.0]]
//! 3x² - 4x + 5 [[4.0, 9.0, 20.0], [37.0, 60.0, 89.0]]
//! the second row, backwards [6.0, 5.0, 4.0]
//! after x.fill_(7) [7.0, 7.0, 7.0]
//! shape mismatch in matmul, lhs: [2, 3], rhs: [2, 3]: inner axes differ (3 != 2); … (called at examples/01_first_tensor.rs:41:27)
//! ```

use ndgc::{D, Device, Result, Tensor, s, t};

fn main() -> Result<()> {
    let x = Tensor::new([[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
    println!("{x}");

    // Operators and methods want equal shapes; what repeats an axis of size 1 says `broadcast_`.
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    println!("centred rows {:?}", centred.to_vec2::<f32>()?);
    println!("x times its transpose {:?}", x.matmul(&x.t()?)?.to_vec2::<f32>()?);

    // A whole expression computes in one buffer.
    let y = t!(3.0 * &x * &x - 4.0 * &x + 5.0)?;
    println!("3x² - 4x + 5 {:?}", y.to_vec2::<f32>()?);

    // A part is a view: it has a shape of its own, and shares the bytes.
    let row = x.slice(s![1, ..;-1])?;
    println!("the second row, backwards {:?}", row.to_vec1::<f32>()?);
    x.fill_(7.)?;
    println!("after x.fill_(7) {:?}", row.to_vec1::<f32>()?);

    // A mistake is a value, not a panic.
    if let Err(error) = x.matmul(&x) {
        println!("{error}");
    }
    Ok(())
}
