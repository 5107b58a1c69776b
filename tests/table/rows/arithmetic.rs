//! Element by element: functions, arithmetic, comparison, logic, and the forms that work in place.

use ndgc::{CmpOp, TensorExt, Var};

use super::rows;

/// Each row of the table of operations.
macro_rules! of_one {
    ([] $($(#[$doc:meta])* $op:ident [$name:ident $($form:ident)*] $kind:ident $value:tt $gradient:tt)*) => {
        rows! { OF_ONE, "Elementwise, of one"; $($name |x| x.a.$name();)* }
    };
}
ndgc_kernels::for_each_unary!(of_one);

rows! { UNARY, "Elementwise, of one";
    ln |x| x.a.ln();
    square |x| x.a.square();
    powf |x| x.a.powf(1.5);
    powi |x| x.a.powi(3);
    round_to |x| x.a.round_to(2);
    lgamma |x| x.a.lgamma();
    bitwise_not |x| x.a.bitwise_not();
    affine |x| x.a.affine(2., 1.);
    clamp |x| x.a.clamp(2., 4.);
    clamp_min |x| x.a.clamp_min(2.);
    clamp_max |x| x.a.clamp_max(4.);
    nan_to_num |x| x.a.nan_to_num(0., Some(1.), Some(-1.));
    is_nan |x| x.a.is_nan();
    is_inf |x| x.a.is_inf();
    is_finite |x| x.a.is_finite();
    logical_not |x| x.a.logical_not();
}

/// Both forms of each row.
macro_rules! of_two {
    ([] $($(#[$doc:meta])* $op:ident
        [$name:ident $wide:ident $($form:ident)*] $kind:ident $value:tt $of_x:tt $of_y:tt)*) => {
        rows! { OF_TWO, "Elementwise, of several";
            $(
                $name |x| x.a.$name(&x.b);
                $wide |x| x.a.$wide(&x.row);
            )*
        }
    };
}
ndgc_kernels::for_each_binary!(of_two);

rows! { BINARY, "Elementwise, of several";
    bitwise_and |x| x.a.bitwise_and(&x.b);
    bitwise_or |x| x.a.bitwise_or(&x.b);
    bitwise_xor |x| x.a.bitwise_xor(&x.b);
    bitwise_left_shift |x| x.a.bitwise_left_shift(&x.b);
    bitwise_right_shift |x| x.a.bitwise_right_shift(&x.b);
    addcmul |x| x.a.addcmul(&x.b, &x.c, 0.5);
    addcdiv |x| x.a.addcdiv(&x.b, &x.c, 0.5);
    lerp |x| x.a.lerp(&x.b, 0.5);
}

rows! { LOGIC, "Comparison and choice";
    eq |x| x.a.eq(&x.b);
    ne |x| x.a.ne(&x.b);
    lt |x| x.a.lt(&x.b);
    le |x| x.a.le(&x.b);
    gt |x| x.a.gt(&x.b);
    ge |x| x.a.ge(&x.b);
    broadcast_eq |x| x.a.broadcast_eq(&x.row);
    broadcast_ne |x| x.a.broadcast_ne(&x.row);
    broadcast_lt |x| x.a.broadcast_lt(&x.row);
    broadcast_le |x| x.a.broadcast_le(&x.row);
    broadcast_gt |x| x.a.broadcast_gt(&x.row);
    broadcast_ge |x| x.a.broadcast_ge(&x.row);
    cmp |x| x.a.cmp(&x.b, CmpOp::Lt);
    logical_and |x| x.a.logical_and(&x.b);
    logical_or |x| x.a.logical_or(&x.b);
    logical_xor |x| x.a.logical_xor(&x.b);
    where_cond |x| x.mask.where_cond(&x.a, &x.b);
    masked_fill |x| x.a.masked_fill(&x.mask, 9.);
    masked_select |x| x.a.masked_select(&x.mask);
    all_close |x| x.a.all_close(&x.b, 0.1, 0.1);
    content_equals |x| x.a.content_equals(&x.b);
}

rows! { IN_PLACE, "In place";
    add_ |x| x.a.add_(&x.b);
    sub_ |x| x.a.sub_(&x.b);
    mul_ |x| x.a.mul_(&x.b);
    div_ |x| x.a.div_(&x.b);
    maximum_ |x| x.a.maximum_(&x.b);
    minimum_ |x| x.a.minimum_(&x.b);
    pow_ |x| x.a.pow_(&x.b);
    neg_ |x| x.a.neg_();
    abs_ |x| x.a.abs_();
    sign_ |x| x.a.sign_();
    sqr_ |x| x.a.sqr_();
    relu_ |x| x.a.relu_();
    exp_ |x| x.a.exp_();
    log_ |x| x.a.log_();
    sqrt_ |x| x.a.sqrt_();
    tanh_ |x| x.a.tanh_();
    sigmoid_ |x| x.a.sigmoid_();
    sin_ |x| x.a.sin_();
    cos_ |x| x.a.cos_();
    recip_ |x| x.a.recip_();
    powf_ |x| x.a.powf_(1.5);
    clamp_ |x| x.a.clamp_(2., 4.);
    rem_ |x| x.a.rem_(&x.b);
    uniform_ |x| x.a.uniform_(0., 1.);
    normal_ |x| x.a.normal_(0., 1.);
    replace |x| x.a.replace(&x.b);
    affine_ |x| x.a.affine_(0.5, 1.);
    fill_ |x| x.a.fill_(2.);
    zero_ |x| x.a.zero_();
    copy_ |x| x.a.copy_(&x.b);
    set |x| Var::from_tensor(&x.a)?.set(&x.b);
    slice_set |x| x.a.slice_set(&x.b, 0, 0);
    scatter_set |x| x.a.scatter_set(&x.places, &x.b, 0);
    scatter_add_set |x| x.a.scatter_add_set(&x.places, &x.b, 0);
    sgd_step_ |x| x.a.sgd_step_(&x.b, None, 0.1, 0., 0.);
    adam_step_ |x| x.a.adam_step_(&x.b, &x.c, &x.b.copy()?, 1, &ndgc::nn::AdamConfig::default());
    optimizer_step_ |x| {
        let rule = ndgc::nn::StepRule::AdaGrad { epsilon: 0.1 };
        x.a.optimizer_step_(&x.b, std::slice::from_ref(&x.c), rule, 0.1, 1)
    };
}
