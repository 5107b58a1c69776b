//! Every CUDA kernel, compiled by the real compiler library: it compiles, and needs the registers that `registers.txt`
//! says, without spilling more.
//!
//! Without that library (NVRTC) this does nothing, unless `NDGC_TEST_REQUIRE_NVRTC=1` asks for it; `.ci/kernels`
//! fetches one. `NDGC_TEST_WRITE_REGISTERS=1` writes the table anew.

use std::fmt::Write;

use ndgc::{Error, bench::compile_cuda_kernels};

/// What the assembler says of the kernels of a file: name, registers, bytes spilled.
fn parse(log: &str) -> Vec<(String, u32, u32)> {
    let number = |words: &[&str], before: &str| {
        let place = words.iter().position(|word| *word == before)?;
        words[..place].iter().rev().find_map(|word| word.parse::<u32>().ok())
    };
    let mut kernels = Vec::new();
    let mut spilled = 0;
    let mut name = String::new();
    for line in log.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let Some(entry) = line.split("Compiling entry function '").nth(1) {
            name = entry.split('\'').next().unwrap().to_owned();
        } else if line.contains("bytes spill stores") {
            spilled = number(&words, "stores,").unwrap_or(0) + number(&words, "loads").unwrap_or(0);
        } else if line.contains("Used ") && line.contains(" registers") {
            let registers = number(&words, "registers,").or_else(|| number(&words, "registers")).unwrap();
            kernels.push((std::mem::take(&mut name), registers, spilled));
        }
    }
    kernels
}

#[test]
fn every_kernel_compiles_and_needs_the_registers_of_the_table() {
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/registers.txt");
    let mut text = String::from("# architecture, kernel, registers, bytes spilled; by NVRTC 13.0\n");
    let compiled: Vec<_> = std::thread::scope(|scope| {
        let started = [80, 90].map(|arch| (arch, scope.spawn(move || compile_cuda_kernels(arch))));
        started.into_iter().map(|(arch, done)| (arch, done.join().unwrap())).collect()
    });
    for (arch, compiled) in compiled {
        let logs = match compiled {
            Ok(logs) => logs,
            Err(Error::DeviceUnavailable { .. }) if std::env::var_os("NDGC_TEST_REQUIRE_NVRTC").is_none() => {
                eprintln!("skipped: no NVRTC");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        if logs.iter().any(|(.., log)| log.contains("pretend")) {
            eprintln!("skipped: the compiler is the pretended one");
            return;
        }
        for (file, element, log) in logs {
            let kernels = parse(&log);
            assert!(!kernels.is_empty(), "{file} for {element}: {log}");
            for (name, registers, spilled) in kernels {
                writeln!(text, "sm_{arch} {name} {registers} {spilled}").unwrap();
            }
        }
    }
    if std::env::var_os("NDGC_TEST_WRITE_REGISTERS").is_some() {
        std::fs::write(table, &text).unwrap();
    }
    let known = std::fs::read_to_string(table).unwrap();
    let differing: Vec<_> = text.lines().filter(|line| !known.lines().any(|other| other == *line)).collect();
    assert!(differing.is_empty(), "not as in the table: {differing:#?}");
    assert_eq!(text.lines().count(), known.lines().count(), "the table has other kernels");
}
