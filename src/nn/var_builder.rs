//! Where a model's weights come from: made, or read from a file, by their names.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use crate::nn::{
    init::Init,
    var_map::{VarMap, check_shape},
};
use crate::ops::call::exec::kept;
use crate::{DType, Device, Error, Result, Shape, Tensor, npz, pickle, safetensors};

/// Weights by name below a prefix, out of a [`Backend`].
pub struct VarBuilderArgs<'a, B: Backend> {
    source: Arc<WeightSource<B>>,
    path: Vec<String>,
    /// The dtype of what is given out.
    pub dtype: DType,
    _borrowed: PhantomData<&'a B>,
}

/// A [`VarBuilderArgs`] of any source.
pub type VarBuilder<'a> = VarBuilderArgs<'a, Box<dyn SimpleBackend + 'a>>;

struct WeightSource<B> {
    backend: Arc<B>,
    device: Device,
    dtype: DType,
}

impl<B: Backend> Clone for VarBuilderArgs<'_, B> {
    fn clone(&self) -> Self {
        self.at(self.path.clone())
    }
}

impl<B: Backend> fmt::Debug for VarBuilderArgs<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VarBuilder(`{}`, {} on {})", self.prefix(), self.dtype, self.source.device)
    }
}

/// A source of weights.
pub trait Backend: Send + Sync {
    /// What a weight that is made is told.
    type Hints: Default;

    /// The weight of a name and shape.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`], [`Error::ShapeMismatch`], those of reading.
    fn get(&self, s: Shape, name: &str, h: Self::Hints, dtype: DType, dev: &Device) -> Result<Tensor>;

    /// The weight of a name.
    ///
    /// # Errors
    /// As [`Backend::get`].
    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor>;

    /// Whether there is a weight of this name.
    fn contains_tensor(&self, name: &str) -> bool;
}

/// A [`Backend`] whose hint is an [`Init`].
pub trait SimpleBackend: Send + Sync {
    /// The weight of a name and shape.
    ///
    /// # Errors
    /// As [`Backend::get`].
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor>;

    /// The weight of a name.
    ///
    /// # Errors
    /// As [`Backend::get`].
    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor>;

    /// Whether there is a weight of this name.
    fn contains_tensor(&self, name: &str) -> bool;
}

impl Backend for Box<dyn SimpleBackend + '_> {
    type Hints = Init;

    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.as_ref().get(s, name, h, dtype, dev)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.as_ref().get_unchecked(name, dtype, dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.as_ref().contains_tensor(name)
    }
}

impl<B: Backend> VarBuilderArgs<'_, B> {
    /// Weights of a backend, given out in `dtype` on `dev`.
    pub fn new_with_args(backend: B, dtype: DType, dev: &Device) -> Self {
        let source = WeightSource { backend: Arc::new(backend), device: dev.clone(), dtype };
        VarBuilderArgs { source: Arc::new(source), path: Vec::new(), dtype, _borrowed: PhantomData }
    }

    fn at(&self, path: Vec<String>) -> Self {
        VarBuilderArgs { source: Arc::clone(&self.source), path, dtype: self.dtype, _borrowed: PhantomData }
    }

    /// The names in front, with points between them.
    pub fn prefix(&self) -> String {
        self.path.join(".")
    }

    /// The same weights without a prefix.
    pub fn root(&self) -> Self {
        self.at(Vec::new())
    }

    /// The same weights with another prefix.
    pub fn set_prefix(&self, prefix: impl ToString) -> Self {
        self.at(vec![prefix.to_string()])
    }

    /// The weights below a name.
    ///
    /// ```
    /// # use ndgc::{nn, DType, Device};
    /// let weights = nn::VarMap::new();
    /// let vb = nn::VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
    /// let block = vb.push_prefix("model").pp(3); // `pp` is the same, and shorter
    /// assert_eq!(block.prefix(), "model.3");
    /// block.get(2, "weight")?;
    /// assert!(weights.data().lock().unwrap().contains_key("model.3.weight"));
    /// assert!(vb.contains_tensor("model.3.weight") && !vb.contains_tensor("weight"));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn push_prefix<S: ToString>(&self, name: S) -> Self {
        let mut path = self.path.clone();
        path.push(name.to_string());
        self.at(path)
    }

    /// As [`VarBuilderArgs::push_prefix`].
    pub fn pp<S: ToString>(&self, name: S) -> Self {
        self.push_prefix(name)
    }

    /// The device of what is given out.
    pub fn device(&self) -> &Device {
        &self.source.device
    }

    /// The dtype of what is given out.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The same weights, given out in another dtype.
    pub fn to_dtype(&self, dtype: DType) -> Self {
        VarBuilderArgs { dtype, ..self.clone() }
    }

    /// The same weights, given out on another device.
    pub fn set_device(self, device: Device) -> Self {
        let source = WeightSource { backend: Arc::clone(&self.source.backend), device, dtype: self.source.dtype };
        VarBuilderArgs { source: Arc::new(source), ..self }
    }

    /// The same weights, given out in another dtype, also by [`VarBuilderArgs::get_unchecked`].
    pub fn set_dtype(self, dtype: DType) -> Self {
        let (backend, device) = (Arc::clone(&self.source.backend), self.source.device.clone());
        VarBuilderArgs { source: Arc::new(WeightSource { backend, device, dtype }), dtype, ..self }
    }

    fn full(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.prefix()) }
    }

    /// Whether there is a weight of exactly this name below the prefix.
    pub fn contains_tensor(&self, name: &str) -> bool {
        self.source.backend.contains_tensor(&self.full(name))
    }

    /// The weight of a name and shape.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`] or [`Error::File`] if there is none, [`Error::ShapeMismatch`] if it has another
    /// shape; those of reading.
    #[track_caller]
    pub fn get<S: Into<Shape>>(&self, s: S, name: &str) -> Result<Tensor> {
        self.get_with_hints(s, name, B::Hints::default())
    }

    /// As [`VarBuilderArgs::get`], with what a weight that is made is told.
    ///
    /// # Errors
    /// As [`VarBuilderArgs::get`].
    #[track_caller]
    pub fn get_with_hints<S: Into<Shape>>(&self, s: S, name: &str, hints: B::Hints) -> Result<Tensor> {
        self.get_with_hints_dtype(s, name, hints, self.dtype)
    }

    /// As [`VarBuilderArgs::get_with_hints`], in a dtype of its own.
    ///
    /// # Errors
    /// As [`VarBuilderArgs::get`].
    #[track_caller]
    pub fn get_with_hints_dtype<S: Into<Shape>>(
        &self,
        s: S,
        name: &str,
        hints: B::Hints,
        dtype: DType,
    ) -> Result<Tensor> {
        let WeightSource { backend, device, .. } = &*self.source;
        kept(Location::caller(), || backend.get(s.into(), &self.full(name), hints, dtype, device))
    }

    /// The weight of a name, of whatever shape it is.
    ///
    /// # Errors
    /// As [`VarBuilderArgs::get`]; [`Error::Invalid`] of a source that makes weights.
    #[track_caller]
    pub fn get_unchecked(&self, name: &str) -> Result<Tensor> {
        self.get_unchecked_dtype(name, self.source.dtype)
    }

    /// As [`VarBuilderArgs::get_unchecked`], in a dtype of its own.
    ///
    /// # Errors
    /// As [`VarBuilderArgs::get_unchecked`].
    #[track_caller]
    pub fn get_unchecked_dtype(&self, name: &str, dtype: DType) -> Result<Tensor> {
        let WeightSource { backend, device, .. } = &*self.source;
        kept(Location::caller(), || backend.get_unchecked(&self.full(name), dtype, device))
    }
}

impl<'a> VarBuilder<'a> {
    /// Weights of a source of one's own.
    pub fn from_backend(backend: Box<dyn SimpleBackend + 'a>, dtype: DType, device: Device) -> Self {
        Self::new_with_args(backend, dtype, &device)
    }

    /// Zeros for every name.
    pub fn zeros(dtype: DType, dev: &Device) -> Self {
        Self::from_backend(Box::new(Zeros), dtype, dev.clone())
    }

    /// Arrays by name.
    ///
    /// ```
    /// # use ndgc::{nn, DType, Device, Tensor};
    /// # use std::collections::HashMap;
    /// let w = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// let tensors = HashMap::from([("layer.w".to_owned(), w)]);
    /// let vb = nn::VarBuilder::from_tensors(tensors, DType::F64, &Device::Cpu).pp("layer");
    /// assert_eq!(vb.get(2, "w")?.to_vec1::<f64>()?, [1., 2.]); // in the dtype that was asked for
    /// assert!(vb.get(3, "w").is_err()); // another shape
    /// let error = vb.get(2, "v").unwrap_err(); // another name
    /// assert!(error.to_string().contains("layer.w"), "{error}"); // the text has what is nearest
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn from_tensors(tensors: HashMap<String, Tensor>, dtype: DType, dev: &Device) -> Self {
        Self::from_backend(Box::new(tensors), dtype, dev.clone())
    }

    /// Variables by name, made when they are first asked for.
    ///
    /// ```
    /// # use ndgc::{nn, DType, Device};
    /// let weights = nn::VarMap::new();
    /// let vb = nn::VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
    /// let w = vb.get_with_hints((2, 3), "w", nn::init::ONE)?; // made now, as a variable
    /// assert_eq!(w.to_vec2::<f32>()?, [[1.; 3]; 2]);
    /// assert!(w.is_variable() && w.is_same(&weights.all_vars()[0]));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn from_varmap(varmap: &VarMap, dtype: DType, dev: &Device) -> Self {
        Self::from_backend(Box::new(varmap.clone()), dtype, dev.clone())
    }

    /// The bytes of a file of safetensors.
    ///
    /// # Errors
    /// As [`safetensors::BufferedSafetensors::new`].
    #[track_caller]
    pub fn from_buffered_safetensors(data: Vec<u8>, dtype: DType, dev: &Device) -> Result<Self> {
        let tensors = safetensors::BufferedSafetensors::new(data)?;
        Ok(Self::from_backend(Box::new(tensors), dtype, dev.clone()))
    }

    /// The bytes of a file of safetensors, borrowed.
    ///
    /// # Errors
    /// As [`safetensors::SliceSafetensors::new`].
    #[track_caller]
    pub fn from_slice_safetensors(data: &'a [u8], dtype: DType, dev: &Device) -> Result<Self> {
        let tensors = safetensors::SliceSafetensors::new(data)?;
        Ok(Self::from_backend(Box::new(tensors), dtype, dev.clone()))
    }

    /// Files of safetensors, of which single weights are read when they are asked for.
    ///
    /// # Errors
    /// As [`safetensors::SafeTensorsFile::multi`].
    #[track_caller]
    pub fn from_safetensors_files<P: AsRef<Path>>(paths: &[P], dtype: DType, dev: &Device) -> Result<Self> {
        let tensors = safetensors::SafeTensorsFile::multi(paths)?;
        Ok(Self::from_backend(Box::new(tensors), dtype, dev.clone()))
    }

    /// A file of NumPy's.
    ///
    /// # Errors
    /// As [`npz::NpzTensors::new`].
    #[track_caller]
    pub fn from_npz<P: AsRef<Path>>(path: P, dtype: DType, dev: &Device) -> Result<Self> {
        let tensors = npz::NpzTensors::new(path)?;
        Ok(Self::from_backend(Box::new(tensors), dtype, dev.clone()))
    }

    /// A file of PyTorch's.
    ///
    /// # Errors
    /// As [`pickle::PthTensors::new`].
    #[track_caller]
    pub fn from_pth<P: AsRef<Path>>(path: P, dtype: DType, dev: &Device) -> Result<Self> {
        let tensors = pickle::PthTensors::new(path, None)?;
        Ok(Self::from_backend(Box::new(tensors), dtype, dev.clone()))
    }

    /// A file of PyTorch's that has the weights under a key.
    ///
    /// # Errors
    /// As [`pickle::PthTensors::new`].
    #[track_caller]
    pub fn from_pth_with_state<P: AsRef<Path>>(path: P, dtype: DType, state_key: &str, dev: &Device) -> Result<Self> {
        let tensors = pickle::PthTensors::new(path, Some(state_key))?;
        Ok(Self::from_backend(Box::new(tensors), dtype, dev.clone()))
    }

    /// The same weights, asked for by what a function makes of the names.
    ///
    /// ```
    /// # use ndgc::{nn, DType, Device, Tensor};
    /// # use std::collections::HashMap;
    /// let w = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// let tensors = HashMap::from([("layer.gamma".to_owned(), w)]);
    /// let vb = nn::VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    /// let vb = vb.rename_f(|name| name.replace("weight", "gamma")); // whole names come here
    /// assert_eq!(vb.pp("layer").get(2, "weight")?.to_vec1::<f32>()?, [1., 2.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn rename_f<F: Fn(&str) -> String + Sync + Send + 'static>(self, f: F) -> Self {
        let f: Box<dyn Fn(&str) -> String + Sync + Send> = Box::new(f);
        self.rename(f)
    }

    /// The same weights, asked for by other names.
    pub fn rename<R: Renamer + Send + Sync + 'a>(self, renamer: R) -> Self {
        let (dtype, device, path) = (self.dtype, self.device().clone(), self.path.clone());
        let backend: Box<dyn SimpleBackend + 'a> = Box::new(Rename::new(self.root(), renamer));
        VarBuilderArgs { path, ..Self::from_backend(backend, dtype, device) }
    }
}

/// Other names for weights.
pub trait Renamer {
    /// What the source calls the weight that is asked for as `name`.
    fn rename(&self, name: &str) -> std::borrow::Cow<'_, str>;
}

impl Renamer for Box<dyn Fn(&str) -> String + Sync + Send> {
    fn rename(&self, name: &str) -> std::borrow::Cow<'_, str> {
        std::borrow::Cow::Owned(self(name))
    }
}

/// Weights under other names.
#[derive(Debug)]
pub struct Rename<'a, R: Renamer> {
    inner: VarBuilder<'a>,
    renamer: R,
}

impl<'a, R: Renamer> Rename<'a, R> {
    /// The weights of `inner` under other names.
    pub fn new(inner: VarBuilder<'a>, renamer: R) -> Self {
        Rename { inner, renamer }
    }
}

impl<R: Renamer + Sync + Send> SimpleBackend for Rename<'_, R> {
    #[track_caller]
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.inner.get_with_hints_dtype(s, &self.renamer.rename(name), h, dtype)?.to_device(dev)
    }

    #[track_caller]
    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.inner.get_unchecked_dtype(&self.renamer.rename(name), dtype)?.to_device(dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.inner.contains_tensor(&self.renamer.rename(name))
    }
}

struct Zeros;

impl SimpleBackend for Zeros {
    #[track_caller]
    fn get(&self, s: Shape, _: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        Tensor::zeros(s, dtype, dev)
    }

    #[track_caller]
    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        Err(no_shape(name))
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn no_shape(name: &str) -> Error {
    Error::invalid("VarBuilder::get_unchecked", format!("`{name}` would have to be made, which needs a shape; use get"))
}

impl SimpleBackend for VarMap {
    #[track_caller]
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        VarMap::get(self, s, name, h, dtype, dev)
    }

    #[track_caller]
    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        Err(no_shape(name))
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.data().lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }
}

/// What finds arrays by name; the rest of a [`SimpleBackend`] follows.
macro_rules! reads {
    ($t:ty, |$of:ident, $name:ident, $dev:ident| $load:expr, $contains:expr) => {
        impl SimpleBackend for $t {
            #[track_caller]
            fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
                let found = self.get_unchecked(name, dtype, dev)?;
                check_shape(name, &found, &s)?;
                Ok(found)
            }

            #[track_caller]
            fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
                let ($of, $name, $dev) = (self, name, dev);
                let found: Result<Tensor> = $load;
                found.map_err(Error::bt)?.to_dtype(dtype)
            }

            fn contains_tensor(&self, name: &str) -> bool {
                let ($of, $name) = (self, name);
                $contains
            }
        }
    };
}

reads!(
    HashMap<String, Tensor>,
    |of, name, dev| of.get(name).ok_or_else(|| Error::no_tensor(name, None, of.keys()))?.to_device(dev),
    of.contains_key(name)
);
reads!(safetensors::BufferedSafetensors, |of, name, dev| of.load(name, dev), of.get(name).is_ok());
reads!(safetensors::SliceSafetensors<'_>, |of, name, dev| of.load(name, dev), of.get(name).is_ok());
reads!(safetensors::SafeTensorsFile, |of, name, dev| of.load(name, dev), of.shape(name).is_some());
reads!(
    pickle::PthTensors,
    |of, name, dev| of.load(name, dev)?.ok_or_else(|| of.missing(name)),
    of.tensor_infos().contains_key(name)
);
reads!(safetensors::MmapedSafetensors, |of, name, dev| of.load(name, dev), of.get(name).is_ok());
reads!(
    npz::NpzTensors,
    |of, name, dev| of.load(name, dev)?.ok_or_else(|| of.missing(name)),
    of.names().into_iter().any(|known| known == name)
);
