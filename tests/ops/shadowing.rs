//! A program written for candle has methods of its own on tensors, in traits: here they mean what it says they mean,
//! since what ndgc has under those names is in a trait that the program does not import.

use ndgc::{Device, Result, Tensor, WithDType};

use crate::ops::support::{alone, values};

/// Methods of the names that users of candle give to theirs, each of which answers with its name.
macro_rules! users_methods {
    ($($name:ident)*) => {
        trait Users {
            $(fn $name(&self) -> &'static str;)*
        }

        impl Users for Tensor {
            $(fn $name(&self) -> &'static str {
                stringify!($name)
            })*
        }

        #[test]
        fn methods_of_a_users_trait_are_called_and_not_ours() {
            alone(|| {
                let x = Tensor::new([1f32, 2.], &Device::Cpu).unwrap();
                $(assert_eq!(x.$name(), stringify!($name));)*
            });
        }
    };
}
users_methods! {
    sort argsort bincount histc median nonzero quantile topk unique all all_all any any_all norm_dim prod prod_all std
    var_mean is_finite is_inf is_nan logical_and logical_not logical_or logical_xor masked_fill masked_select clamp_max
    clamp_min lerp movedim split split_sizes tile pad diag diagonal trace tril triu cdist cross kron outer cummax cummin
    cumprod one_hot repeat_interleave isnan isinf swap_dims unbind scatter_reduce take_along_dim gather_add nan_to_num
    logsumexp logcumsumexp searchsorted log_sum allclose cpu to_cpu item shape_str sum_dim index_put
}

/// As it stands in programs for candle: other arguments and other results than ours.
trait NonZero {
    fn nonzero_ids<T: WithDType>(&self) -> Result<Vec<u32>>;
}

impl NonZero for Tensor {
    fn nonzero_ids<T: WithDType>(&self) -> Result<Vec<u32>> {
        let all = self.flatten_all()?.to_vec1::<T>()?;
        Ok((0..).zip(all).filter(|(_, value)| value.to_f64() != 0.).map(|(place, _)| place).collect())
    }
}

#[test]
fn the_same_names_are_ours_for_who_imports_the_trait() {
    alone(|| {
        let x = Tensor::new([3f32, 0., 2.], &Device::Cpu).unwrap();
        assert_eq!(x.nonzero_ids::<f32>().unwrap(), [0, 2]);
        let (sorted, ids) = ndgc::TensorExt::sort(&x, 0, false).unwrap();
        assert_eq!((values::<f32>(&sorted), values::<u32>(&ids)), (vec![0., 2., 3.], vec![1, 2, 0]));
        assert!(sorted.created_at().unwrap().file().ends_with("shadowing.rs"), "made by this line");
    });
}
