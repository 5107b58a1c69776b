use ndgc::{DType, Device, NdManager, Tensor, gc};
#[test]
fn smoke() {
    let m = NdManager::new_base_manager(&Device::Cpu).unwrap();
    let a = m.zeros((2, 3), DType::F32).unwrap();
    let b = a.add(&a).unwrap();
    assert_eq!(m.array_count(), 2);
    drop(b);
    assert_eq!(m.array_count(), 2);
    gc::on();
    let b = a.add(&a).unwrap();
    assert_eq!(m.array_count(), 3);
    drop(b);
    a.dims().unwrap();
    assert_eq!(m.array_count(), 2);
    assert_eq!(gc::collect_orphans(), 1);
    assert_eq!(m.array_count(), 1);
    println!("{}", m.debug_dump());
    println!("{:?}", gc::stats());
    m.close().unwrap();
    println!("{}", a.dims().unwrap_err());
    println!("{}", m.zeros(3, DType::F32).unwrap_err());
    let t = Tensor::zeros((100, 100), DType::F32, &Device::Cpu).unwrap();
    println!("{:?} {:?}", t, Device::Cpu.memory());
    drop(t);
    gc::collect();
    println!("{:?}", Device::Cpu.memory());
    let r: Vec<_> = (0..4).map(|_| std::thread::spawn(|| { for _ in 0..100000 { let a = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap(); let _b = a.add(&a).unwrap(); } })).collect();
    for r in r { r.join().unwrap(); }
    gc::collect();
    println!("{:?} {:?}", Device::Cpu.memory(), gc::stats());
}
