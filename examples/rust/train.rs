// SPDX-License-Identifier: Apache-2.0
//! Trains on two threads with 1-bit Adam, through the C interface.
//!
//! rustc -O train.rs -L native=/opt/thinwire/lib -o train && ./train

use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_void};
use std::{ptr, thread};

#[repr(C)]
struct Parameter {
    name: *const c_char,
    shape: *const usize,
    dims: usize,
}

#[repr(C)]
struct Report {
    struct_size: usize,
    at_boundary: c_int,
    applied: c_int,
    phase: *const c_char,
    steps: i64,
    learning_rate: f64,
    grad_norm: f64,
    loss_scale: f64,
    bytes_sent: u64,
    seconds: f64,
    waited_seconds: f64,
}

#[link(name = "thinwire_c")]
extern "C" {
    fn thinwire_last_error() -> *const c_char;
    fn thinwire_comm_local(size: c_int, comms: *mut *mut c_void) -> c_int;
    fn thinwire_comm_rank(comm: *const c_void) -> c_int;
    fn thinwire_comm_free(comm: *mut c_void);
    fn thinwire_engine_new(
        comm: *mut c_void,
        config: *const c_char,
        parameters: *const Parameter,
        num_parameters: usize,
        params: *mut c_void,
        grads: *mut c_void,
        engine: *mut *mut c_void,
    ) -> c_int;
    fn thinwire_engine_begin_backward(engine: *mut c_void) -> c_int;
    fn thinwire_engine_end_backward(engine: *mut c_void) -> c_int;
    fn thinwire_engine_step(engine: *mut c_void, report: *mut Report) -> c_int;
    fn thinwire_engine_free(engine: *mut c_void);
}

const SIZE: usize = 4096;
const CONFIG: &str = r#"{"train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "OneBitAdam",
                  "params": {"lr": 0.01, "freeze_step": 100}}}"#;

fn check(status: c_int) {
    if status != 0 {
        let text = unsafe { CStr::from_ptr(thinwire_last_error()) };
        panic!("{}", text.to_string_lossy());
    }
}

/// A communicator, which one thread at a time uses.
struct Comm(*mut c_void);
unsafe impl Send for Comm {}

impl Drop for Comm {
    fn drop(&mut self) {
        unsafe { thinwire_comm_free(self.0) }
    }
}

/// An engine, and the arrays that it trains.
struct Engine {
    handle: *mut c_void,
    params: *mut [f32],
    grads: *mut [f32],
}

impl Engine {
    fn new(comm: &Comm) -> Engine {
        let (config, name) = (
            CString::new(CONFIG).unwrap(),
            CString::new("centre").unwrap(),
        );
        let parameter = Parameter {
            name: name.as_ptr(),
            shape: &SIZE,
            dims: 1,
        };
        let array = || Box::into_raw(vec![0.0f32; SIZE].into_boxed_slice());
        let mut engine = Engine {
            handle: ptr::null_mut(),
            params: array(),
            grads: array(),
        };
        let (params, grads) = (engine.params as *mut c_void, engine.grads as *mut c_void);
        check(unsafe {
            thinwire_engine_new(
                comm.0,
                config.as_ptr(),
                &parameter,
                1,
                params,
                grads,
                &mut engine.handle,
            )
        });
        engine
    }

    /// One step; `add` gets the parameters and adds to the gradients.
    fn step(&mut self, add: impl FnOnce(&[f32], &mut [f32])) -> Report {
        let mut report: Report = unsafe { std::mem::zeroed() };
        report.struct_size = std::mem::size_of::<Report>();
        unsafe {
            check(thinwire_engine_begin_backward(self.handle));
            add(&*self.params, &mut *self.grads);
            check(thinwire_engine_end_backward(self.handle));
            check(thinwire_engine_step(self.handle, &mut report));
        }
        report
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        unsafe {
            thinwire_engine_free(self.handle);
            drop(Box::from_raw(self.params));
            drop(Box::from_raw(self.grads));
        }
    }
}

fn train(comm: Comm) {
    let rank = unsafe { thinwire_comm_rank(comm.0) };
    let mut engine = Engine::new(&comm);
    let mut random = rank as u32 + 1;
    for step in 1..=400 {
        let report = engine.step(|params, grads| {
            for i in 0..SIZE {
                random = random.wrapping_mul(1664525).wrapping_add(1013904223);
                let noise = (random >> 8) as f32 / (1 << 24) as f32 - 0.5;
                grads[i] += params[i] - if i % 2 == 0 { 1.0 } else { -1.0 } + noise;
            }
        });
        if rank == 0 && step % 50 == 0 {
            let phase = unsafe { CStr::from_ptr(report.phase) }.to_str().unwrap();
            let first = unsafe { (&*engine.params)[0] };
            println!(
                "step {step}: {phase}, first number {first}, {} bytes sent",
                report.bytes_sent
            );
        }
    }
}

fn main() {
    let mut handles = [ptr::null_mut(); 2];
    check(unsafe { thinwire_comm_local(2, handles.as_mut_ptr()) });
    let threads: Vec<_> = handles
        .iter()
        .map(|&handle| Comm(handle))
        .map(|comm| thread::spawn(move || train(comm)))
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
