// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/ndarray.h>

#include <cstddef>
#include <vector>

#include "bindings.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/view.h"

namespace thinwire::python {

/// Whether an array of bool counts as an array of bytes.
enum class Bools { kRefused, kAsBytes };

/// A caller's array, which is one-dimensional, contiguous and on the CPU. A
/// tuple of two arrays is joined (View::joined). Throws TypeError naming the
/// argument for anything else, and never copies. Keeps the array alive, and may
/// be destroyed without the GIL.
template <class Seen, class... Access>
class BasicArray {
 public:
  BasicArray() = default;
  BasicArray(nb::handle object, const char* name,
             Bools bools = Bools::kRefused);

  [[nodiscard]] Seen view() const noexcept { return view_; }

 private:
  std::vector<
      nb::ndarray<Access..., nb::device::cpu, nb::c_contig, nb::ndim<1>>>
      held_;
  Seen view_;
};

using Array = BasicArray<View>;  // the array is written
using ConstArray = BasicArray<ConstView, nb::ro>;

/// Returns whether an object offers its memory, regardless of shape and type.
[[nodiscard]] bool is_array(nb::handle object);

/// Returns a copy in the same dtype, or in fp32 if there are two.
[[nodiscard]] Buffer copy_of(ConstView values);

/// Returns a writable memoryview of bytes that it does not own.
[[nodiscard]] nb::object memoryview_of(const void* data, std::size_t bytes);

/// Returns an array that owns the memory, with DLPack and the buffer protocol.
[[nodiscard]] nb::object to_python(Buffer&& values);
[[nodiscard]] nb::object to_python(std::vector<float>&& values);

}  // namespace thinwire::python
