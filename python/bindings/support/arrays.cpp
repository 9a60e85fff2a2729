// SPDX-License-Identifier: Apache-2.0
#include "support/arrays.h"

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "thinwire/core/dtype.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::python {
namespace {

using nb::dlpack::dtype_code;

constexpr std::array kDTypes = {
    DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
    DType::kInt32,   DType::kInt64,   DType::kUInt8};

nb::dlpack::dtype to_dlpack(DType dtype) {
  dtype_code code = dtype_code::Float;
  if (dtype == DType::kBFloat16) code = dtype_code::Bfloat;
  if (dtype == DType::kInt32 || dtype == DType::kInt64) code = dtype_code::Int;
  if (dtype == DType::kUInt8) code = dtype_code::UInt;
  return {static_cast<std::uint8_t>(code),
          static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
}

std::optional<DType> from_dlpack(nb::dlpack::dtype dtype, Bools bools) {
  for (const DType known : kDTypes)
    if (to_dlpack(known) == dtype) return known;
  if (bools == Bools::kAsBytes && dtype == nb::dtype<bool>())
    return DType::kUInt8;
  return std::nullopt;
}

// Returns a description such as "torch.Tensor, shape (2, 3), dtype ...".
std::string describe(nb::handle object) {
  std::string text = nb::inst_name(object).c_str();
  for (const char* name : {"shape", "dtype", "device"}) {
    const nb::object value = nb::getattr(object, name, nb::none());
    if (!value.is_none())
      text += std::string(", ") + name + " " + nb::str(value).c_str();
  }
  return text;
}

[[noreturn]] void refuse(nb::handle object, const char* name, bool written) {
  const std::string text =
      std::string(name) + " must be " + (written ? "a writable" : "an") +
      " array on the CPU, one-dimensional and contiguous, of float32, float16, "
      "bfloat16, float64, int32, int64 or uint8, got " +
      describe(object);
  throw nb::type_error(text.c_str());
}

// Returns the two parts of a tuple, or the object itself.
std::vector<nb::handle> parts_of(nb::handle object) {
  if (!nb::isinstance<nb::tuple>(object) || nb::len(object) != 2)
    return {object};
  const auto pair = nb::borrow<nb::tuple>(object);
  return {pair[0], pair[1]};  // the caller holds the tuple
}

// Returns an array that owns the values.
template <class Values>
nb::object own(Values&& values, DType dtype) {
  auto* const held = new Values(std::move(values));
  nb::capsule owner(
      held, [](void* all) noexcept { delete static_cast<Values*>(all); });
  return nb::cast(nb::ndarray<nb::array_api>(held->data(), {held->size()},
                                             owner, {}, to_dlpack(dtype),
                                             nb::device::cpu::value));
}

}  // namespace

template <class Seen, class... Access>
BasicArray<Seen, Access...>::BasicArray(nb::handle object, const char* name,
                                        Bools bools) {
  for (const nb::handle part : parts_of(object)) {
    auto& held = held_.emplace_back();
    std::optional<DType> dtype;
    if (nb::try_cast(part, held, false))
      dtype = from_dlpack(held.dtype(), bools);
    if (!dtype) refuse(part, name, std::is_same_v<Seen, View>);
    const Seen own(held.data(), held.size(), *dtype);
    view_ = held_.size() == 1 ? own : Seen::joined(view_, own);
  }
}
template class BasicArray<View>;
template class BasicArray<ConstView, nb::ro>;

bool is_array(nb::handle object) {
  return PyObject_CheckBuffer(object.ptr()) != 0 ||
         nb::hasattr(object, "__dlpack__");
}

Buffer copy_of(ConstView values) {
  const DType dtype = values.is_joined() ? DType::kFloat32 : values.dtype();
  Buffer copy(values.size(), dtype, Fill::kNone);
  kernels::convert(values, copy.view());
  return copy;
}

nb::object memoryview_of(const void* data, std::size_t bytes) {
  auto view = nb::steal(
      PyMemoryView_FromMemory(static_cast<char*>(const_cast<void*>(data)),
                              static_cast<Py_ssize_t>(bytes), PyBUF_WRITE));
  if (!view.is_valid()) nb::raise_python_error();
  return view;
}

nb::object to_python(Buffer&& values) {
  const DType dtype = values.dtype();
  return own(std::move(values), dtype);
}

nb::object to_python(std::vector<float>&& values) {
  return own(std::move(values), DType::kFloat32);
}

}  // namespace thinwire::python
