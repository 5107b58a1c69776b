//! A write that fails leaves what was there, and nothing else.

use std::collections::HashMap;

use ndgc::{Error, NdManager, Tensor, npz, safetensors};

use crate::common::{alone, each_case, text_of};
use crate::files::support::{Folder, assert_same, six, why};
use ndgc::{DType, Device};

#[test]
fn a_failed_write_leaves_the_file_before() {
    each_case(&[false], |device| {
        let folder = Folder::new();
        let path = folder.file("a.npz");
        let a = six(DType::F32).to_device(device).unwrap();
        npz::write(&[("a", &a)], &path).unwrap();
        let before = std::fs::read(&path).unwrap();
        assert!(why(npz::write(&[("b", &a), ("b", &a)], &path)).contains("two arrays have the name `b`"));
        assert!(why(npz::write(&[("n".repeat(70_000), &a)], &path)).contains("a name of 70000 bytes"));
        let closed = a.neg().unwrap();
        closed.close();
        assert!(matches!(npz::write(&[("b", &a), ("c", &closed)], &path), Err(Error::StaleArray(_))));
        assert!(matches!(closed.write_npy(&path), Err(Error::StaleArray(_))));
        let reserved = HashMap::from([("__metadata__", a.clone())]);
        assert!(why(safetensors::save(&reserved, &path)).contains("__metadata__"));
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert_eq!(folder.names(), ["a.npz"]);
    });
}

#[test]
fn paths_that_cannot_be_written_are_named() {
    alone(|| {
        let folder = Folder::new();
        let a = six(DType::F32);
        let missing = folder.file("none").join("a.npy");
        assert!(why(a.write_npy(&missing)).starts_with(&missing.display().to_string()));
        why(a.write_npy(folder.path()));
        why(a.write_npy("/"));
        why(a.write_npy(""));
        assert!(folder.names().is_empty());
    });
}

#[test]
fn paths_that_cannot_be_read_are_named() {
    alone(|| {
        let folder = Folder::new();
        let missing = folder.file("none.npy");
        let text = why(Tensor::read_npy(&missing));
        assert!(text.starts_with(&missing.display().to_string()) && text.contains("cannot be opened"), "{text}");
        assert!(why(Tensor::read_npy(folder.path())).contains("not a regular file"));
        assert!(why(Tensor::read_npz(&missing)).contains("cannot be opened"));
        assert!(why(safetensors::load(&missing, &Device::Cpu)).contains("cannot be opened"));
    });
}

#[cfg(unix)]
#[test]
fn links_and_permissions_stay() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    alone(|| {
        let folder = Folder::new();
        let (path, link) = (folder.file("a.npy"), folder.file("link.npy"));
        std::fs::write(&path, "something else").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&path, &link).unwrap();
        six(DType::I64).write_npy(&link).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_same(&Tensor::read_npy(&path).unwrap(), &six(DType::I64));
    });
}

#[test]
fn a_file_that_changed_is_noticed() {
    alone(|| {
        let folder = Folder::new();
        let path = folder.file("a.npz");
        npz::write(&[("a", six(DType::F32))], &path).unwrap();
        let lazy = npz::NpzTensors::new(&path).unwrap();
        npz::write(&[("a", six(DType::F64))], &path).unwrap();
        assert!(why(lazy.get("a")).contains("bytes before"));
        assert!(why(lazy.get_shape_and_dtype("b")).contains("bytes before"));
    });
}

#[test]
fn a_failed_read_leaves_no_array() {
    each_case(&[false, true], |device| {
        let folder = Folder::new();
        let path = folder.file("a.npz");
        let manager = NdManager::new_base_manager(device).unwrap();
        let mut bytes = npz::encode(&[("a", six(DType::F32)), ("b", six(DType::F32))]).unwrap();
        let directory = bytes.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        bytes[directory - 1] ^= 1;
        assert!(why(npz::decode(&bytes, &manager)).contains("in entry `b`: the checksum is"));
        std::fs::write(&path, &bytes).unwrap();
        let text = text_of(&npz::read_by_name(&path, &["a", "none"], &manager).unwrap_err());
        let shown = path.display();
        assert_eq!(text, format!("{shown}: there is no tensor `none`; the nearest names are `a`, `b`"));
        assert!(why(npz::read_by_name(&path, &["a", "b"], &manager)).contains("checksum"));
        assert_eq!(manager.array_count(), 0);
        manager.close().unwrap();
        assert!(matches!(npz::decode(&bytes, &manager), Err(Error::ManagerClosed { .. })));
    });
}
