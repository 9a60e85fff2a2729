// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/ndarray.h>

#include <vector>

#include "bindings.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/view.h"

namespace thinwire::python {

/// Whether an array of bool counts as one of bytes.
enum class Bools { kRefused, kAsBytes };

/// A caller's array that is written: one-dimensional, contiguous, on the CPU;
/// or a tuple of two, which are joined (View::joined). Keeps it alive; may die
/// without the GIL. Throws TypeError naming the argument for anything else, and
/// never copies.
class Array {
 public:
  Array() = default;
  Array(nb::handle object, const char* name, Bools bools = Bools::kRefused);

  [[nodiscard]] View view() const noexcept { return view_; }

 private:
  std::vector<nb::ndarray<nb::device::cpu, nb::c_contig, nb::ndim<1>>> held_;
  View view_;
};

/// The same of one that is only read.
class ConstArray {
 public:
  ConstArray() = default;
  ConstArray(nb::handle object, const char* name,
             Bools bools = Bools::kRefused);

  [[nodiscard]] ConstView view() const noexcept { return view_; }

 private:
  std::vector<nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig, nb::ndim<1>>>
      held_;
  ConstView view_;
};

/// Whether an object offers its memory, whatever its shape and type.
[[nodiscard]] bool is_array(nb::handle object);

/// An array with DLPack and the buffer protocol that owns the memory.
[[nodiscard]] nb::object to_python(Buffer&& values);
[[nodiscard]] nb::object to_python(std::vector<float>&& values);

}  // namespace thinwire::python
