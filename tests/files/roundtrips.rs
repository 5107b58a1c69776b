//! What is written is read again, in every format.

use std::collections::HashMap;

use ndgc::{DType, Device, NdManager, Tensor, ndar, npy, npz, safetensors};

use crate::common::{alone, each_case};
use crate::files::support::{Folder, assert_same, forms};

/// The dtypes that NumPy has.
fn numpy() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| ![DType::F8E4M3, DType::BF16].contains(dtype))
}

#[test]
fn npy_keeps_every_array() {
    let folder = Folder::new();
    let path = folder.file("a.npy");
    each_case(&[false, true], |device| {
        for array in numpy().flat_map(|dtype| forms(dtype, device)) {
            array.write_npy(&path).unwrap();
            assert_eq!(npy::encode(&array).unwrap(), std::fs::read(&path).unwrap());
            let again = npy::read(&path, device).unwrap();
            assert_eq!(again.device(), device);
            assert!(again.is_contiguous());
            assert_same(&array, &again);
            assert_same(&array, &Tensor::read_npy(&path).unwrap());
        }
    });
}

#[test]
fn npz_keeps_every_array() {
    let folder = Folder::new();
    let path = folder.file("a.npz");
    each_case(&[false, true], |device| {
        let arrays: Vec<_> = numpy().flat_map(|dtype| forms(dtype, device)).collect();
        let named: Vec<_> = arrays.iter().enumerate().map(|(i, array)| (format!("layer/{i}"), array)).collect();
        Tensor::write_npz(&named, &path).unwrap();
        assert_eq!(npz::encode(&named).unwrap(), std::fs::read(&path).unwrap());
        let again = npz::read(&path, device).unwrap();
        assert_eq!(again.len(), named.len());
        for ((name, array), (name_again, array_again)) in named.iter().zip(&again) {
            assert_eq!(name, name_again);
            assert_same(array, array_again);
        }
        let some = Tensor::read_npz_by_name(&path, &["layer/9", "layer/2"]).unwrap();
        assert_same(&some[0], &arrays[9]);
        assert_same(&some[1], &arrays[2]);
        let lazy = npy::NpzTensors::new(&path).unwrap();
        assert_eq!(lazy.names().len(), arrays.len());
        let (shape, dtype) = lazy.get_shape_and_dtype("layer/17").unwrap();
        assert_eq!((shape, dtype), (*arrays[17].shape(), arrays[17].dtype()));
        assert_same(&lazy.load("layer/17", device).unwrap().unwrap(), &arrays[17]);
        assert_same(&lazy.get("layer/1").unwrap().unwrap(), &arrays[1]);
        assert!(lazy.get("layer/999").unwrap().is_none());
    });
}

#[test]
fn safetensors_keeps_every_array() {
    if crate::common::ran_apart() {
        return;
    }
    use ndgc::safetensors::{BufferedSafetensors, Load, SafeTensorsFile, SliceSafetensors};

    let folder = Folder::new();
    let (path, second) = (folder.file("a.safetensors"), folder.file("b.safetensors"));
    each_case(&[false, true], |device| {
        let all = DType::ALL.into_iter().flat_map(|dtype| forms(dtype, device));
        let arrays: HashMap<String, _> =
            all.enumerate().map(|(i, array)| (format!("\"{i}\" Größe\n"), array)).collect();
        safetensors::save(&arrays, &path).unwrap();
        let again = safetensors::load(&path, device).unwrap();
        assert_eq!(again.len(), arrays.len());
        let bytes = std::fs::read(&path).unwrap();
        let buffer = safetensors::load_buffer(&bytes, device).unwrap();
        let slice = SliceSafetensors::new(&bytes).unwrap();
        let owned = BufferedSafetensors::new(bytes.clone()).unwrap();
        let (name, other) = arrays.iter().next().unwrap();
        other.save_safetensors("other", &second).unwrap();
        let files = SafeTensorsFile::multi(&[&path, &second]).unwrap();
        assert_eq!(files.names().len(), arrays.len() + 1);
        assert_same(&files.load("other", device).unwrap(), other);
        assert_eq!(files.shape(name), Some(other.dims()));
        for (name, array) in &arrays {
            assert_same(array, &again[name]);
            assert_same(array, &buffer[name]);
            assert_same(array, &slice.load(name, device).unwrap());
            assert_same(array, &owned.load(name, device).unwrap());
            assert_same(array, &files.load(name, device).unwrap());
            let view = owned.get(name).unwrap();
            assert_eq!((view.dtype().unwrap(), view.shape()), (array.dtype(), array.dims()));
            assert_same(array, &view.load(device).unwrap());
        }
    });
}

#[test]
fn ndar_keeps_every_array_and_its_name() {
    let folder = Folder::new();
    let (path, list) = (folder.file("a.ndar"), folder.file("list.ndar"));
    each_case(&[false, true], |device| {
        let arrays: Vec<_> = DType::ALL.into_iter().flat_map(|dtype| forms(dtype, device)).collect();
        arrays[3].set_name("weights of 层 \u{1F600}\0").unwrap();
        for array in &arrays {
            ndar::write(array, &path).unwrap();
            assert_eq!(ndar::encode(array).unwrap(), std::fs::read(&path).unwrap());
            let again = ndar::read(&path, device).unwrap();
            assert_eq!(array.name(), again.name());
            assert_same(array, &again);
        }
        ndar::write_list(&arrays, &list).unwrap();
        let again = ndar::read_list(&list, device).unwrap();
        assert_eq!(again.len(), arrays.len());
        for (array, again) in arrays.iter().zip(&again) {
            assert_eq!(array.name(), again.name());
            assert_same(array, again);
        }
        assert!(ndar::decode_list(&ndar::encode_list::<Tensor>(&[]).unwrap(), device).unwrap().is_empty());
    });
}

#[test]
fn managers_own_what_is_read_to_them() {
    each_case(&[false, true], |device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let array = forms(DType::F32, device).remove(4);
        let kept = [
            npy::decode(&npy::encode(&array).unwrap(), &manager).unwrap(),
            npz::decode(&npz::encode(&[("a", &array)]).unwrap(), &manager).unwrap().remove(0).1,
            ndar::decode(&ndar::encode(&array).unwrap(), &manager).unwrap(),
        ];
        assert_eq!(manager.array_count(), kept.len());
        kept.iter().for_each(|again| assert_same(&array, again));
        assert!(kept.iter().all(|again| again.created_at().unwrap().file() == file!()));
        manager.close().unwrap();
    });
}

#[test]
fn archives_in_the_long_form_are_read() {
    alone(|| {
        let a = Tensor::arange(0f32, 5., &Device::Cpu).unwrap();
        let b = a.neg().unwrap();
        for short_max in [0, 100, 300, 500] {
            let bytes = ndgc::bench::encode_npz(&[("a", &a), ("b", &b)], short_max).unwrap();
            let arrays = npz::decode(&bytes, &Device::Cpu).unwrap();
            assert_eq!(arrays.len(), 2);
            assert_eq!(arrays[1].1.to_vec1::<f32>().unwrap(), [0., -1., -2., -3., -4.]);
        }
    });
}
