//! The numbers of an array as doubles, without an array between.

use ndgc::{DType, Error, Result, Tensor, WithDType, bf16, f16};

/// All numbers in row-major order, whatever the dtype, the layout and the device.
pub(crate) fn numbers(op: &'static str, array: &Tensor) -> Result<Vec<f64>> {
    fn of<T: WithDType>(array: &Tensor) -> Result<Vec<f64>> {
        let wide = |all: &[T]| all.iter().map(|x| x.to_f64()).collect();
        if array.is_contiguous() && array.device().is_cpu() {
            return array.with_slice(wide);
        }
        Ok(wide(&array.to_vec::<T>()?))
    }
    match array.dtype() {
        DType::F64 => array.to_vec::<f64>(),
        DType::F32 => of::<f32>(array),
        DType::F16 => of::<f16>(array),
        DType::BF16 => of::<bf16>(array),
        DType::I64 => of::<i64>(array),
        DType::I32 => of::<i32>(array),
        DType::U32 => of::<u32>(array),
        DType::U8 => of::<u8>(array),
        DType::Bool => of::<bool>(array),
        dtype => Err(Error::unsupported_dtype(op, dtype, "f16, bf16, f32, f64, u8, u32, i32, i64, bool")),
    }
}
