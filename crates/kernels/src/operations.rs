//! The table of elementwise operations: one row each, from which every form of it is made.
//!
//! ```text
//! Op [method method_ method_into] kind
//!     { |x| value in Rust => "value in CUDA" }
//!     { kept |g, s| gradient in Rust => "gradient in CUDA" }
//!
//! Op [method broadcast_method method_ method_into broadcast_method_into] kind
//!     { |x, y| value in Rust => "value in CUDA" }
//!     { |g, x, y| gradient of x }
//!     { |g, x, y| gradient of y }
//! ```
//!
//! `kind` says what it is defined for, and how its loop is compiled:
//! - `number`: every dtype but bool. Loops of its own, with vectors.
//! - `vector`: floats. Loops of its own, with vectors.
//! - `whole`: as `vector`; integers and truth values are whole already, and stay as they are.
//! - `call`: floats. A call for each element, since what ends in a function of the C library never becomes vectors; on
//!   CUDA in kernels of their own, since they need more registers.
//! - `single`: as `call`, but singles have loops with vectors.
//!
//! Of two operands it is `any` dtype, `number` as above, or `float`: floats, by a call for each pair of elements.
//!
//! `g` is the gradient of the result, `s` what is kept for it: the `input`, the `output`, or `nothing`. The Rust text
//! is compiled for f32 and for f64 (halves compute in f32): a method is that of std where std has it, `Float::exp` the
//! vectorised one of `cpu/math.rs`, `consts` those of the type. The CUDA text computes in `W`, with what
//! `elementwise.cu` and `prelude.cu` have.
//!
//! Gradients of two operands are made of operations on arrays, in the shape of the result: `g` is the gradient of that,
//! and each names the operands that it is computed from. If neither names any, none is kept. Nothing here knows arrays:
//! the text is compiled beside the operations that it is made of.
//!
//! A new operation is a row here, and of CUDA a function in `elementwise.cu` where its text would be long. The tests
//! take it from here; what they cannot know is its formula, and where it is smooth: a row of
//! `tests/kernels/cpu/formulas.rs`, without which they do not compile, and of two integers an arm of `plain_binary` in
//! `elementwise.rs` beside it where they have a rule of their own. `BLESS=1` writes its line of `docs/operations.md`.
//!
//! A list macro gets all rows: `for_each_unary!(list)` expands to `list! { [] rows }`, `for_each_unary!(list, f32)` to
//! `list! { [f32] rows }`. `.ci/pretend` makes the CUDA text of these lines too, and notices if it is not the same.

/// Calls a macro with the rows of the functions of one operand.
#[macro_export]
#[doc(hidden)]
macro_rules! for_each_unary {
    ($list:ident $(, $with:tt)*) => {
        $list! {
            [$($with)*]
            /// `-x`. Integers wrap.
            Neg [neg neg_ neg_into] number
                { |x| x.negated() => "negated(x)" }
                { nothing |g, _s| -g => "-g" }
            /// `|x|`. Its gradient at 0 is 0.
            Abs [abs abs_ abs_into] number
                { |x| x.magnitude() => "magnitude(x)" }
                { input |g, s| g * s.sign() => "g * sign(s)" }
            /// `-1`, `0` or `1`. Its gradient is 0.
            Sign [sign sign_ sign_into] number
                { |x| x.sign() => "sign(x)" }
                { nothing |_g, _s| 0.0 => "0" }
            /// `x * x`.
            Sqr [sqr sqr_ sqr_into] number
                { |x| x.squared() => "times(x, x)" }
                { input |g, s| 2.0 * s * g => "(W)2 * s * g" }
            /// `max(x, 0)`; the gradient at 0 is 0.
            Relu [relu relu_ relu_into] number
                { |x| x.rectified() => "rectified(x)" }
                { output |g, s| if s > 0.0 { g } else { 0.0 } => "s > 0 ? g : (W)0" }
            /// `e^x`.
            Exp [exp exp_ exp_into] vector
                { |x| Float::exp(x) => "exp_(x)" }
                { output |g, s| s * g => "s * g" }
            /// `2^x`.
            Exp2 [exp2 exp2_ exp2_into] call
                { |x| x.exp2() => "exp2_(x)" }
                { output |g, s| g * (s * consts::LN_2) => "g * (s * (W)0.6931471805599453)" }
            /// The natural logarithm.
            Log [log log_ log_into] vector
                { |x| Float::ln(x) => "log_(x)" }
                { input |g, s| g / s => "g / s" }
            /// The square root.
            Sqrt [sqrt sqrt_ sqrt_into] vector
                { |x| x.sqrt() => "sqrt_(x)" }
                { output |g, s| g / (2.0 * s) => "g / ((W)2 * s)" }
            /// The cube root, also of negative numbers.
            Cbrt [cbrt cbrt_ cbrt_into] call
                { |x| x.cbrt() => "cbrt_(x)" }
                { output |g, s| g / (3.0 * (s * s)) => "g / ((W)3 * (s * s))" }
            /// `1 / sqrt(x)`.
            Rsqrt [rsqrt rsqrt_ rsqrt_into] vector
                { |x| 1.0 / x.sqrt() => "(W)1 / sqrt_(x)" }
                { output |g, s| -0.5 * g * (s * s * s) => "(W)-0.5 * g * (s * s * s)" }
            /// `1 / x`.
            Recip [recip recip_ recip_into] vector
                { |x| 1.0 / x => "(W)1 / x" }
                { output |g, s| -(g * (s * s)) => "-(g * (s * s))" }
            /// The hyperbolic tangent.
            Tanh [tanh tanh_ tanh_into] vector
                { |x| Float::tanh(x) => "tanh_(x)" }
                { output |g, s| g * (1.0 - s * s) => "g * ((W)1 - s * s)" }
            /// `1 / (1 + e^-x)`.
            Sigmoid [sigmoid sigmoid_ sigmoid_into] vector
                { |x| x.sigmoid() => "sigmoid(x)" }
                { output |g, s| g * s * (1.0 - s) => "g * s * ((W)1 - s)" }
            /// `x` without its whole part, with the sign of `x`.
            Frac [frac frac_ frac_into] vector
                { |x| x.fract() => "x - trunc_(x)" }
                { nothing |g, _s| g => "g" }
            /// `x / (1 + e^-x)`, also called swish.
            Silu [silu silu_ silu_into] vector
                { |x| x * x.sigmoid() => "x * sigmoid(x)" }
                { input |g, s| g * s.silu_slope() => "g * silu_slope(s)" }
            /// The Gaussian error linear unit in its tanh form: `x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2`.
            Gelu [gelu gelu_ gelu_into] vector
                { |x| x.gelu() => "gelu(x)" }
                { input |g, s| g * s.gelu_slope() => "g * gelu_slope(s)" }
            /// `(x + 3) / 6` between 0 and 1.
            HardSigmoid [hard_sigmoid hard_sigmoid_ hard_sigmoid_into] vector
                { |x| (x * (1.0 / 6.0) + 0.5).clamped(0.0, 1.0) => "hard_sigmoid(x)" }
                { input |g, s| if s.abs() <= 3.0 { g * (1.0 / 6.0) } else { 0.0 }
                    => "abs_(s) <= 3 ? g * ((W)1 / (W)6) : (W)0" }
            /// `x` times `(x + 3) / 6` between 0 and 1.
            HardSwish [hard_swish hard_swish_ hard_swish_into] vector
                { |x| x * (x * (1.0 / 6.0) + 0.5).clamped(0.0, 1.0) => "x * hard_sigmoid(x)" }
                { input |g, s| if s >= 3.0 { g } else if s <= -3.0 { 0.0 } else { g * (s * (1.0 / 3.0) + 0.5) }
                    => "s >= 3 ? g : s <= -3 ? (W)0 : g * (s * ((W)1 / (W)3) + (W)0.5)" }
            /// `x / (1 + |x|)`.
            Softsign [softsign softsign_ softsign_into] vector
                { |x| x / (1.0 + x.abs()) => "x / ((W)1 + abs_(x))" }
                { input |g, s| g / (1.0 + s.abs()).squared() => "g / times((W)1 + abs_(s), (W)1 + abs_(s))" }
            /// The largest whole number that is at most `x`. Its gradient is 0.
            Floor [floor floor_ floor_into] whole
                { |x| x.floor() => "floor_(x)" }
                { nothing |_g, _s| 0.0 => "0" }
            /// The smallest whole number that is at least `x`. Its gradient is 0.
            Ceil [ceil ceil_ ceil_into] whole
                { |x| x.ceil() => "ceil_(x)" }
                { nothing |_g, _s| 0.0 => "0" }
            /// The nearest whole number, a half away from zero. Its gradient is 0.
            Round [round round_ round_into] whole
                { |x| x.round() => "round_(x)" }
                { nothing |_g, _s| 0.0 => "0" }
            /// The nearest whole number, a half to the even one: round half to even, as PyTorch and NumPy round. Its
            /// gradient is 0.
            RoundTiesEven [round_ties_even round_ties_even_ round_ties_even_into] whole
                { |x| x.round_ties_even() => "rint_(x)" }
                { nothing |_g, _s| 0.0 => "0" }
            /// `x` with what is behind the point cut off. Its gradient is 0.
            Trunc [trunc trunc_ trunc_into] whole
                { |x| x.trunc() => "trunc_(x)" }
                { nothing |_g, _s| 0.0 => "0" }
            /// `e^x - 1`, accurate near 0.
            Expm1 [expm1 expm1_ expm1_into] single
                { |x| Float::exp_m1(x) => "expm1_(x)" }
                { input |g, s| g * Float::exp(s) => "g * exp_(s)" }
            /// `log(1 + x)`, accurate near 0.
            Log1p [log1p log1p_ log1p_into] single
                { |x| Float::ln_1p(x) => "log1p_(x)" }
                { input |g, s| g / (1.0 + s) => "g / ((W)1 + s)" }
            /// The logarithm to base 2.
            Log2 [log2 log2_ log2_into] call
                { |x| x.log2() => "log2_(x)" }
                { input |g, s| g / (s * consts::LN_2) => "g / (s * (W)0.6931471805599453)" }
            /// The logarithm to base 10.
            Log10 [log10 log10_ log10_into] call
                { |x| x.log10() => "log10_(x)" }
                { input |g, s| g / (s * consts::LN_10) => "g / (s * (W)2.302585092994046)" }
            /// The sine.
            Sin [sin sin_ sin_into] call
                { |x| x.sin() => "sin_(x)" }
                { input |g, s| g * s.cos() => "g * cos_(s)" }
            /// The cosine.
            Cos [cos cos_ cos_into] call
                { |x| x.cos() => "cos_(x)" }
                { input |g, s| -(g * s.sin()) => "-(g * sin_(s))" }
            /// The tangent.
            Tan [tan tan_ tan_into] call
                { |x| x.tan() => "tan_(x)" }
                { output |g, s| g * (1.0 + s * s) => "g * ((W)1 + s * s)" }
            /// The angle in `[-pi/2, pi/2]` whose sine is x; NaN outside `[-1, 1]`.
            Asin [asin asin_ asin_into] call
                { |x| x.asin() => "asin_(x)" }
                { input |g, s| g / ((1.0 - s) * (1.0 + s)).sqrt() => "g / sqrt_(((W)1 - s) * ((W)1 + s))" }
            /// The angle in `[0, pi]` whose cosine is x; NaN outside `[-1, 1]`.
            Acos [acos acos_ acos_into] call
                { |x| x.acos() => "acos_(x)" }
                { input |g, s| -g / ((1.0 - s) * (1.0 + s)).sqrt() => "-g / sqrt_(((W)1 - s) * ((W)1 + s))" }
            /// The angle in `[-pi/2, pi/2]` whose tangent is x.
            Atan [atan atan_ atan_into] call
                { |x| x.atan() => "atan_(x)" }
                { input |g, s| g / (1.0 + s * s) => "g / ((W)1 + s * s)" }
            /// The hyperbolic sine, accurate near 0.
            Sinh [sinh sinh_ sinh_into] call
                { |x| x.sinh() => "sinh_(x)" }
                { input |g, s| g * s.cosh() => "g * cosh_(s)" }
            /// The hyperbolic cosine.
            Cosh [cosh cosh_ cosh_into] call
                { |x| x.cosh() => "cosh_(x)" }
                { input |g, s| g * s.sinh() => "g * sinh_(s)" }
            /// The inverse of the hyperbolic sine, accurate near 0 and for large x.
            Asinh [asinh asinh_ asinh_into] call
                { |x| x.through(libm::asinh) => "asinh_(x)" }
                { input |g, s| g / s.hypot(1.0) => "g / hypot_(s, (W)1)" }
            /// The inverse of the hyperbolic cosine, at least 0; NaN below 1.
            Acosh [acosh acosh_ acosh_into] call
                { |x| x.through(special::acosh) => "acosh_(x)" }
                { input |g, s| g / ((s - 1.0).sqrt() * (s + 1.0).sqrt()) => "g / (sqrt_(s - (W)1) * sqrt_(s + (W)1))" }
            /// The inverse of the hyperbolic tangent, accurate near 0; NaN outside `[-1, 1]`.
            Atanh [atanh atanh_ atanh_into] call
                { |x| x.atanh() => "atanh_(x)" }
                { input |g, s| g / ((1.0 - s) * (1.0 + s)) => "g / (((W)1 - s) * ((W)1 + s))" }
            /// `log(1 + e^x)`, for any x.
            Softplus [softplus softplus_ softplus_into] single
                { |x| x.softplus() => "softplus(x)" }
                { input |g, s| g * s.sigmoid() => "g * sigmoid(s)" }
            /// `-log(1 + e^-x)`: the logarithm of the sigmoid, for any x.
            LogSigmoid [log_sigmoid log_sigmoid_ log_sigmoid_into] single
                { |x| -(-x).softplus() => "-softplus(-x)" }
                { input |g, s| g * (-s).sigmoid() => "g * sigmoid(-s)" }
            /// The inverse of the sigmoid: `log(x / (1 - x))`. NaN outside of 0 to 1.
            Logit [logit logit_ logit_into] call
                { |x| (x / (1.0 - x)).ln() => "log_(x / ((W)1 - x))" }
                { input |g, s| g / (s * (1.0 - s)) => "g / (s * ((W)1 - s))" }
            /// `x tanh(log(1 + e^x))`.
            Mish [mish mish_ mish_into] single
                { |x| x.mish() => "mish(x)" }
                { input |g, s| g * s.mish_slope() => "g * mish_slope(s)" }
            /// The error function: `2 / sqrt(pi)` times the integral of `e^(-t^2)` from 0 to x.
            Erf [erf erf_ erf_into] single
                { |x| Float::erf(x) => "(W)erf((f64)x)" }
                { input |g, s| g * (consts::FRAC_2_SQRT_PI * Float::exp(-s * s))
                    => "g * ((W)1.1283791670955126 * exp_(-s * s))" }
            /// `1 - erf(x)`, without cancellation for large x.
            Erfc [erfc erfc_ erfc_into] call
                { |x| x.through(libm::erfc) => "(W)erfc((f64)x)" }
                { input |g, s| -(g * (consts::FRAC_2_SQRT_PI * Float::exp(-s * s)))
                    => "-(g * ((W)1.1283791670955126 * exp_(-s * s)))" }
            /// The Gaussian error linear unit: `x P(N < x)` of a standard normal N.
            GeluErf [gelu_erf gelu_erf_ gelu_erf_into] single
                { |x| x.gelu_erf() => "(W)gelu_erf(x)" }
                { input |g, s| g * s.gelu_erf_slope() => "g * (W)gelu_erf_slope(s)" }
            /// The inverse of the error function; NaN outside `[-1, 1]`, infinite at the ends.
            ErfInv [erfinv erfinv_ erfinv_into] call
                { |x| x.through(special::erf_inv) => "(W)erf_inv(x)" }
                { output |g, s| g * ((s * s).exp() / consts::FRAC_2_SQRT_PI)
                    => "g * (exp_(s * s) / (W)1.1283791670955126)" }
            /// The logarithm of the absolute value of the gamma function.
            LnGamma [gammaln gammaln_ gammaln_into] call
                { |x| x.through(special::ln_gamma) => "(W)lgamma((f64)x)" }
                { input |g, s| g * s.through(special::digamma) => "g * (W)digamma(s)" }
            /// The slope of `gammaln`; NaN at 0 and at negative whole numbers.
            Digamma [digamma digamma_ digamma_into] call
                { |x| x.through(special::digamma) => "(W)digamma(x)" }
                { input |g, s| g * s.through(special::trigamma) => "g * (W)trigamma(s)" }
        }
    };
}

/// Calls a macro with the rows of the functions of two operands: `[method, with broadcasting, in place, into, both]`.
#[macro_export]
#[doc(hidden)]
macro_rules! for_each_binary {
    ($list:ident $(, $with:tt)*) => {
        $list! {
            [$($with)*]
            /// `x + y`. Integers wrap.
            Add [add broadcast_add add_ add_into broadcast_add_into] number
                { |x, y| x.add(y) => "plus(x, y)" }
                { |g| Ok(g.clone()) }
                { |g| Ok(g.clone()) }
            /// `x - y`. Integers wrap.
            Sub [sub broadcast_sub sub_ sub_into broadcast_sub_into] number
                { |x, y| x.sub(y) => "minus(x, y)" }
                { |g| Ok(g.clone()) }
                { |g| g.neg() }
            /// `x * y`. Integers wrap.
            Mul [mul broadcast_mul mul_ mul_into broadcast_mul_into] number
                { |x, y| x.mul(y) => "times(x, y)" }
                { |g, y| g.broadcast_mul(y) }
                { |g, x| g.broadcast_mul(x) }
            /// `x / y`. Integer division by 0 gives 0.
            Div [div broadcast_div div_ div_into broadcast_div_into] number
                { |x, y| x.div(y) => "over(x, y)" }
                { |g, y| g.broadcast_div(y) }
                // The square of `y` may overflow where the slope does not.
                { |g, x, y| g.mul(&x.broadcast_div(y)?.broadcast_div(y)?)?.neg() }
            /// The rest of a division whose quotient is cut towards zero: exact, with the sign of x, as `%` in Rust. Of
            /// integers by 0 it is x. Gradients: 1, and minus the quotient.
            Fmod [fmod broadcast_fmod fmod_ fmod_into broadcast_fmod_into] number
                { |x, y| x.fmod(y) => "fmod_(x, y)" }
                { |g| Ok(g.clone()) }
                // The quotient cut towards zero is that of the sizes, with the sign of both.
                { |g, x, y| {
                    let size = x.abs()?.broadcast_floor_div(&y.abs()?)?;
                    g.mul(&size.mul(&x.sign()?.broadcast_mul(&y.sign()?)?)?)?.neg()
                } }
            /// The rest of a division whose quotient is rounded down: it has the sign of y, as `%` in Python. Of
            /// integers by 0 it is x. Gradients: 1, and minus the quotient.
            Rem [rem broadcast_rem rem_ rem_into broadcast_rem_into] number
                { |x, y| x.rem(y) => "rem(x, y)" }
                { |g| Ok(g.clone()) }
                { |g, x, y| g.mul(&x.broadcast_floor_div(y)?)?.neg() }
            /// The quotient rounded down to a whole number. Integer division by 0 gives 0. Of an infinite x it is
            /// infinite, where NumPy and PyTorch have NaN. Its gradients are 0.
            FloorDiv [floor_div broadcast_floor_div floor_div_ floor_div_into broadcast_floor_div_into] number
                { |x, y| x.floor_div(y) => "floor_div(x, y)" }
                { |g| g.zeros_like() }
                { |g| g.zeros_like() }
            /// The larger; NaN if either is.
            Maximum [maximum broadcast_maximum maximum_ maximum_into broadcast_maximum_into] any
                { |x, y| x.max_or_nan(y) => "larger(x, y)" }
                { |g, x, y| of_choice(g, x.broadcast_gt(y)?, x, y) }
                { |g, x, y| of_choice(g, x.broadcast_lt(y)?, x, y) }
            /// The smaller; NaN if either is.
            Minimum [minimum broadcast_minimum minimum_ minimum_into broadcast_minimum_into] any
                { |x, y| x.min_or_nan(y) => "smaller(x, y)" }
                { |g, x, y| of_choice(g, x.broadcast_lt(y)?, x, y) }
                { |g, x, y| of_choice(g, x.broadcast_gt(y)?, x, y) }
            /// `x ^ y`; a negative base is right for whole exponents. Integers wrap; a negative exponent gives the
            /// inverse cut towards zero, and of 0 it is 0, as a division by 0.
            Pow [pow broadcast_pow pow_ pow_into broadcast_pow_into] number
                { |x, y| x.power(y) => "power(x, y)" }
                { |g, x, y| {
                    let slope = x.broadcast_pow(&y.affine(1.0, -1.0)?)?.broadcast_mul(y)?;
                    // A power of 0 is 1 everywhere, also where the formula has 0 * infinity.
                    zero_where(&y.eq(&y.zeros_like()?)?, &g.mul(&slope)?)
                } }
                { |g, x, y| {
                    let slope = x.broadcast_pow(y)?.broadcast_mul(&x.log()?)?;
                    // At 0 the formula has 0 * infinity; the limit is 0, but for negative exponents.
                    let flat = x.eq(&x.zeros_like()?)?.broadcast_mul(&y.ge(&y.zeros_like()?)?)?;
                    zero_where(&flat, &g.mul(&slope)?)
                } }
            /// The angle in `[-pi, pi]` of the point `(y, x)`, where x is the left operand.
            Atan2 [atan2 broadcast_atan2 atan2_ atan2_into broadcast_atan2_into] float
                { |x, y| x.angle(y) => "angle(x, y)" }
                { |g, x, y| of_angle(g, x, y, 0) }
                { |g, x, y| of_angle(g, x, y, 1) }
            /// The length of the vector `(x, y)`, `sqrt(x^2 + y^2)`, without overflow on the way: of 3 and 4 it is 5.
            /// Infinite if either is, also beside NaN. Its gradients at `(0, 0)` are 0.
            Hypot [hypot broadcast_hypot hypot_ hypot_into broadcast_hypot_into] float
                { |x, y| x.through_both(y, f64::hypot) => "hypot_(x, y)" }
                { |g, x, y| of_length(g, x, &x.broadcast_hypot(y)?) }
                { |g, x, y| of_length(g, y, &x.broadcast_hypot(y)?) }
            /// `|x|` with the sign of y, also that of a zero and of NaN: of 3 and -0 it is -3. Its gradients: the sign
            /// by which x was multiplied, 0 where x is; and 0.
            Copysign [copysign broadcast_copysign copysign_ copysign_into broadcast_copysign_into] float
                { |x, y| x.through_both(y, f64::copysign) => "copysign_(x, y)" }
                { |g, x, y| g.mul(&x.sign()?.broadcast_mul(&y.ones_like()?.copysign(y)?)?) }
                { |g| g.zeros_like() }
            /// `log(e^x + e^y)`, for any of both: of 1000 and 1000 it is `1000 + log(2)`. Its gradients are the shares
            /// in the sum, a half each where x and y are equal, also where they are infinite.
            LogAddExp [logaddexp broadcast_logaddexp logaddexp_ logaddexp_into broadcast_logaddexp_into] float
                { |x, y| x.through_both(y, special::log_add_exp) => "log_add_exp(x, y)" }
                // Equal ones that are infinite have no difference.
                { |g, x, y| g.mul(&zero_where(&x.broadcast_eq(y)?, &x.broadcast_sub(y)?)?.sigmoid()?) }
                { |g, x, y| g.mul(&zero_where(&x.broadcast_eq(y)?, &y.broadcast_sub(x)?)?.sigmoid()?) }
            /// `x log(y)`, and 0 where x is 0, unless y is NaN: of 0 and 0 it is 0. Gradients: `log(y)`, but 0 where x
            /// is 0 and y is not positive; and `x / y`, 0 where x is.
            Xlogy [xlogy broadcast_xlogy xlogy_ xlogy_into broadcast_xlogy_into] float
                { |x, y| x.through_both(y, special::x_log_y) => "x_log_y(x, y)" }
                { |g, x, y| {
                    let flat = x.eq(&x.zeros_like()?)?.broadcast_mul(&y.le(&y.zeros_like()?)?)?;
                    zero_where(&flat, &g.broadcast_xlogy(y)?)
                } }
                { |g, x, y| zero_where(&x.eq(&x.zeros_like()?)?, &g.mul(&x.broadcast_div(y)?)?) }
        }
    };
}

/// What an operation is defined for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    Any,
    /// Every dtype but bool.
    Number,
    Float,
    /// Floats; anything else is whole already, and there is nothing to do.
    Whole,
}

/// What the gradient of a function is computed from, beside the gradient of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Input,
    Output,
    Nothing,
}

macro_rules! domain {
    (any) => {
        Domain::Any
    };
    (number) => {
        Domain::Number
    };
    (whole) => {
        Domain::Whole
    };
    (vector) => {
        Domain::Float
    };
    (call) => {
        Domain::Float
    };
    (single) => {
        Domain::Float
    };
    (float) => {
        Domain::Float
    };
}

macro_rules! is_called {
    (call) => {
        true
    };
    (single) => {
        true
    };
    ($kind:ident) => {
        false
    };
}

macro_rules! kept {
    ({ input $($rest:tt)* }) => {
        Kept::Input
    };
    ({ output $($rest:tt)* }) => {
        Kept::Output
    };
    ({ nothing $($rest:tt)* }) => {
        Kept::Nothing
    };
}

/// The CUDA text of the value or of the gradient of a row.
macro_rules! cuda {
    ({ $($kept:ident)? |$($x:ident),*| $value:expr => $cuda:literal }) => {
        $cuda
    };
}

macro_rules! unary {
    ([] $($(#[$doc:meta])* $op:ident [$name:ident $($form:ident)*] $kind:ident $value:tt $gradient:tt)*) => {
        /// A function of one operand, of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum UnaryOp { $($(#[$doc])* $op),* }

        impl UnaryOp {
            pub const ALL: &[UnaryOp] = &[$(UnaryOp::$op),*];

            /// The method.
            pub fn name(self) -> &'static str {
                match self { $(UnaryOp::$op => stringify!($name)),* }
            }

            pub fn domain(self) -> Domain {
                match self { $(UnaryOp::$op => domain!($kind)),* }
            }

            /// Whether it is long, and computed by a call for each element.
            pub fn is_called(self) -> bool {
                match self { $(UnaryOp::$op => is_called!($kind)),* }
            }

            pub fn kept(self) -> Kept {
                match self { $(UnaryOp::$op => kept!($gradient)),* }
            }
        }

        const UNARY: &str = concat!("#define UNARY_ROWS", $(
            " \\\n    ROW(", stringify!($op), ", ", stringify!($kind), ", ", cuda!($value), ", ", cuda!($gradient), ")",
        )* "\n");
    };
}
for_each_unary!(unary);

macro_rules! binary {
    ([] $($(#[$doc:meta])* $op:ident [$($form:ident)*] $kind:ident $value:tt $of_x:tt $of_y:tt)*) => {
        /// `f(x, y)` of two elements of one dtype, of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum BinaryOp { $($(#[$doc])* $op),* }

        impl BinaryOp {
            pub const ALL: &[BinaryOp] = &[$(BinaryOp::$op),*];

            pub fn domain(self) -> Domain {
                match self { $(BinaryOp::$op => domain!($kind)),* }
            }
        }

        const BINARY: &str = concat!("#define BINARY_ROWS", $(
            " \\\n    ROW(", stringify!($op), ", ", stringify!($kind), ", ", cuda!($value), ")",
        )* "\n");
    };
}
for_each_binary!(binary);

/// The rows as the CUDA kernels have them, in front of `elementwise.cu`. An operation's number there is that of its
/// enum.
pub fn cuda() -> String {
    [UNARY, BINARY].concat()
}
