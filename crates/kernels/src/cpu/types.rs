//! From a dtype at run time to a type: one macro for each set of types that a kernel has code for. Each is code once
//! for every type in its list, so the lists are as short as the kernel allows.
//!
//! Who uses them has `DType`, `Error`, `F8E4M3`, `f16`, `bf16`, `In` and `Out` in scope.

/// Operands of one kernel as elements of one type: sources, then destinations.
macro_rules! open {
    ($t:ty; $($source:ident)*; $($target:ident)*) => {
        let ($($source,)* $($target,)*) = ($(In::<$t>::of($source),)* $(Out::<$t>::of($target),)*);
    };
}

/// Runs a block with `$t` standing for the type of a dtype that computes as itself, or another block with `$n` for one
/// that computes in a wider one. Truth values do not compute: an error.
macro_rules! with_number {
    ($op:literal, $dtype:expr, $t:ident => $body:expr, $n:ident => $narrow:expr) => {
        $crate::cpu::types::with_number!(@ $op, $dtype, $t => $body, $n => $narrow;
            U8 u8, U32 u32, U64 u64, I32 i32, I64 i64, F32 f32, F64 f64;
            U16 u16, I8 i8, I16 i16, F8E4M3 F8E4M3, F16 f16, BF16 bf16)
    };
    (@ $op:literal, $dtype:expr, $t:ident => $body:expr, $n:ident => $narrow:expr;
     $($d:ident $own:ty),*; $($e:ident $other:ty),*) => {
        match $dtype {
            $(DType::$d => {
                type $t = $own;
                $body
            })*
            $(DType::$e => {
                type $n = $other;
                $narrow
            })*
            dtype => return Err(Error::unsupported_dtype($op, dtype, "any but bool")),
        }
    };
}

/// As `with_number!`, of floats.
macro_rules! with_float {
    ($op:literal, $dtype:expr, $t:ident => $body:expr, $n:ident => $narrow:expr) => {
        match $dtype {
            DType::F32 => {
                type $t = f32;
                $body
            }
            DType::F64 => {
                type $t = f64;
                $body
            }
            DType::F8E4M3 => {
                type $n = F8E4M3;
                $narrow
            }
            DType::F16 => {
                type $n = f16;
                $narrow
            }
            DType::BF16 => {
                type $n = bf16;
                $narrow
            }
            dtype => return Err(Error::unsupported_dtype($op, dtype, DType::FLOATS)),
        }
    };
}

/// Runs a block with `$t` standing for a dtype that computes as itself; the others were [`widened`], or are an error.
macro_rules! with_wide {
    ($op:literal, $dtype:expr, $t:ident => $body:expr) => {
        $crate::cpu::types::with_number!(@ $op, $dtype, $t => $body, N => { unreachable!() };
            U8 u8, Bool u8, U32 u32, U64 u64, I32 i32, I64 i64, F32 f32, F64 f64;)
    };
    ($op:literal, float $dtype:expr, $t:ident => $body:expr) => {
        $crate::cpu::types::with_number!(@ $op, $dtype, $t => $body, N => { unreachable!() }; F32 f32, F64 f64;)
    };
}

/// Runs a block with `$t` standing for the unsigned integer of a size in bytes.
macro_rules! with_size {
    ($size:expr, $t:ident => $body:expr) => {
        match $size {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}

/// As `with_size!`, of the size of a dtype.
macro_rules! with_bits {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::cpu::types::with_size!($dtype.size_in_bytes(), $t => $body)
    };
}

/// Runs a block with `$t` standing for the type of a dtype of indices or masks; another dtype is an error.
macro_rules! with_id {
    ($op:literal, $dtype:expr, $t:ident => $body:expr) => {
        $crate::cpu::types::with_number!(@ $op, $dtype, $t => $body, N => { unreachable!() }; U8 u8, Bool u8, U32 u32, I64 i64;)
    };
}

/// Runs a block with `$t` standing for the type in which numbers of a dtype are added: wrapping sums are those of the
/// bits, whatever the sign.
macro_rules! with_sums {
    ($op:literal, $dtype:expr, $t:ident => $body:expr) => {
        $crate::cpu::types::with_number!(@ $op, $dtype, $t => $body, N => { unreachable!() };
            U8 u8, I8 u8, U16 u16, I16 u16, U32 u32, I32 u32, U64 u64, I64 u64, F32 f32, F64 f64;)
    };
}

/// Runs a block with `$n` standing for a type of low precision.
macro_rules! with_low_precision {
    ($dtype:expr, $n:ident => $body:expr) => {
        $crate::cpu::types::with_low_precision!($dtype, $n => $body;
            U16 u16, I8 i8, I16 i16, F8E4M3 F8E4M3, F16 f16, BF16 bf16)
    };
    ($dtype:expr, $n:ident => $body:expr; $($d:ident $t:ty),*) => {
        match $dtype {
            $(DType::$d => {
                type $n = $t;
                $body
            })*
            dtype => unreachable!("{dtype} is not of low precision"),
        }
    };
}

pub(super) use {
    open, with_bits, with_float, with_id, with_low_precision, with_number, with_size, with_sums, with_wide,
};
