// SPDX-License-Identifier: Apache-2.0
// A device of torch for tests (PrivateUse1, "fence"): addresses that the host
// cannot read, and streams that do nothing until somebody waits for them.
//
// * A tensor's data_ptr() lies in a range mapped PROT_NONE for good; the bytes
//   lie in a second range, at a fixed distance, that only these files know.
// * An operator copies its arguments to the host, runs on the CPU, and queues
//   the copy of its results: they are NaN until their stream has been waited
//   for, or read by an operator of the same stream.
// * Asynchronous copies are queued. What they will write is NaN until then;
//   what they will read is read then.
// * Freed memory may be used again by the stream it was allocated on at once,
//   as with CUDA's caching allocator; record_stream() delays that.
// * Whoever reads what another stream writes, or writes what it reads, without
//   having waited for it, is told so: by vector clocks, whatever ran first.
//
// The headers are parts of this one file, which is a module of Python.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "group.h"

PYBIND11_MODULE(fence_device, m) {
  using Seconds = std::chrono::duration<float>;
  m.def(
      "create",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
         const Seconds& timeout) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<fence::Ccl>(
            store, rank, size,
            std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
      },
      pybind11::call_guard<pybind11::gil_scoped_release>());
}
